"""Where people work: a live model in a notebook, Hugging Face's Trainer, Lightning.

Nothing here imports torch, transformers or lightning: what is handed in has imported them.
"""
