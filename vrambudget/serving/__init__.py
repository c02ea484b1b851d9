"""Inference servers: how they divide a GPU among weights, activations and a cache of blocks."""
