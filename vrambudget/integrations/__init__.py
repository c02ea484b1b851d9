"""Live models in notebooks, Hugging Face's Trainer, and Lightning.

Nothing here imports torch, transformers or lightning: whoever passes a live object has done so.
"""
