"""The user's input: a model, a job, a GPU. It is checked strictly, and every mistake is named."""

from vrambudget.config.cards import ModelCard, card_names, load_card
from vrambudget.config.job import Job
from vrambudget.config.model_config import ModelConfig, load_config, unknown_model_type
from vrambudget.config.source import FoundModel, find_model

__all__ = [
    "FoundModel",
    "Job",
    "ModelCard",
    "ModelConfig",
    "card_names",
    "find_model",
    "load_card",
    "load_config",
    "unknown_model_type",
]
