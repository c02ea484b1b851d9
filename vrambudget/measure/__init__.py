"""Jobs run for real on the GPU that PyTorch sees: `measure`, and the loop that defines a job."""
