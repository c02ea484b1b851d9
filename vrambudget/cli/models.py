"""`vrambudget models`: the models that are known by name. Any config.json of these works.

diffusers' pipelines stand at the end, with the class of each as its family.
"""

import argparse

from vrambudget.cli import DONE
from vrambudget.cli.output import add_output_options, chosen_format, emit
from vrambudget.config.cards import card_names, load_card, picture_names
from vrambudget.pictures.cards import card as picture_card
from vrambudget.report.tabular import Column, render_rows

_COLUMNS = [
    Column("name", "name"),
    Column("model_type", "family"),
    Column("parameters", "parameters", "right", lambda n: f"{n:,}" if n else "-"),
    Column("title", "what it is"),
]
_MORE = [Column("source", "source")]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print the model cards; JSON and CSV give the source of each."""
    output = chosen_format(args)
    rows = [
        {**card.model_dump(), "model_type": card.config["model_type"]}
        for card in map(load_card, card_names())
    ]
    pipelines = map(picture_card, picture_names())
    rows += [{**each, "model_type": each["pipeline"], "parameters": None} for each in pipelines]
    emit(render_rows(_COLUMNS + (_MORE if output in ("json", "csv") else []), rows, output), args)
    return DONE
