"""The engine: a tape, a tensor without data, and an autograd that counts bytes."""
