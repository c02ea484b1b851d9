"""What editors and type checkers read is what the functions take."""

import ast
import typing
from pathlib import Path

import pytest
from job_fields import FOLDER, modules

import vrambudget
from vrambudget.config.job import Job
from vrambudget.config.job_fields import RunFields
from vrambudget.config.sweep_fields import SweepFields

INIT = ast.parse(Path(vrambudget.__file__).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", modules())
def test_the_fields_of_a_job_are_typed_as_they_are(name):
    """`python tests/job_fields.py` writes the modules anew."""
    kept = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert ast.dump(ast.parse(kept)) == ast.dump(ast.parse(modules()[name]))


def test_every_spelling_of_a_field_is_typed():
    assert RunFields.__annotations__.keys() == {*Job.model_fields, *Job.aliases, "config"}
    assert SweepFields.__annotations__.keys() == {*Job.model_fields, *Job.aliases}


def test_type_checkers_find_every_public_name_at_its_home():
    block = next(node for node in INIT.body if isinstance(node, ast.If))
    found = {alias.asname: node.module for node in block.body for alias in node.names}
    assert found == vrambudget._HOMES  # noqa: SLF001 - the table itself


@pytest.mark.parametrize("name", ["estimate", "advise", "plan", "max_batch", "max_block", "draw"])
def test_a_function_names_the_type_of_its_fields(name):
    function = getattr(vrambudget, name)
    names = {**function.__globals__, "RunFields": RunFields}
    assert typing.get_type_hints(function, names)["fields"] == typing.Unpack[RunFields]
