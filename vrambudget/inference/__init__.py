"""Models at work: what `generate` of transformers holds and makes, step by step."""
