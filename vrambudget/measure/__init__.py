"""Measure: real steps of a job on the GPU that PyTorch sees."""
