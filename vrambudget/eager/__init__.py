"""PyTorch's own eager code on a fake GPU: its autograd, its hooks, its functional transforms."""
