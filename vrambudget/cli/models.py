"""`vrambudget models`: the models that are known by name. Any config.json of these works.

diffusers' pipelines stand at the end, with the class of each as its family.
"""

import argparse

from vrambudget.cli import DONE
from vrambudget.cli.output import add_output_options, chosen_format, emit
from vrambudget.config.cards import card_names, load_card, picture_names, plain_name
from vrambudget.config.settings import show
from vrambudget.errors import VramBudgetError
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
    parser.add_argument("part", nargs="?", default="", help="only those with this in their name")
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print the models; JSON and CSV give the source of each."""
    output = chosen_format(args)
    rows = [
        {**card.model_dump(), "model_type": card.config["model_type"]}
        for card in map(load_card, card_names())
    ]
    pipelines = map(picture_card, picture_names())
    rows += [{**each, "model_type": each["pipeline"], "parameters": None} for each in pipelines]
    rows = [row for row in rows if plain_name(args.part) in plain_name(row["name"])]
    if not rows:
        raise VramBudgetError(f"no model has {show(args.part)} in its name")
    emit(render_rows(_COLUMNS + (_MORE if output in ("json", "csv") else []), rows, output), args)
    return DONE
