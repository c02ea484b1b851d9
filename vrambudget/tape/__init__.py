"""What a job allocates and frees, in order, and what PyTorch's caching allocator makes of it."""
