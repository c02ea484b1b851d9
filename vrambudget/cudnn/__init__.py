"""NVIDIA's own cuDNN, asked without a GPU which engine a convolution takes on a GPU."""
