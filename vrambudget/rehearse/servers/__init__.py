"""Inference servers that are rehearsed: their command as it is, ended once they are ready."""
