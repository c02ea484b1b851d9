"""Inference servers: how they divide a card among weights, activations and a cache of blocks."""
