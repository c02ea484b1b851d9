"""The loop around a model: optimizers, clipping, scaling, adapters."""
