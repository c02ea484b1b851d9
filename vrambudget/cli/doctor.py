"""`vrambudget doctor`: which extras are here, which versions have rules, and what can rehearse.

Estimates need nothing but Python. PyTorch's CUDA build is looked for in the Python that
VRAMBUDGET_PYTHON names, else in this one.
"""

import argparse
import platform
from collections.abc import Iterator

from vrambudget import __version__
from vrambudget.cli import DONE
from vrambudget.cli.output import add_output_options, chosen_format, emit
from vrambudget.config.gpus import find_gpu
from vrambudget.config.versions import CHECKED, default_version, installed_version
from vrambudget.errors import VramBudgetError
from vrambudget.rehearse.stub_libraries import c_compiler
from vrambudget.rehearse.torch_build import find_torch, own_python
from vrambudget.report.tabular import Column, render_rows

_COLUMNS = [Column("what", "what"), Column("found", "found"), Column("use", "for")]
_EXTRAS = (
    ("hub", "huggingface_hub", "models of the hub by their id"),
    ("sweep", "numpy", "sweeps --by requested"),
    ("sweep", "tqdm", "a progress bar"),
    ("sweep", "pyarrow", "Parquet"),
    ("pictures", "matplotlib", "PNG, SVG and PDF"),
    ("notebook", "ipywidgets", "sliders: vrambudget.explore()"),
    ("yaml", "pyyaml", "YAML files of a run"),
    ("gpu", "nvidia-ml-py", "--gpu auto"),
    ("torch", "torch", "live modules, measuring"),
    ("torch", "transformers", "model types without rules of their own"),
    ("", "peft", "measuring and rehearsing LoRA"),
    ("", "bitsandbytes", "measuring and rehearsing 4-bit weights, 8-bit states"),
    ("", "accelerate", "measuring loops with accelerate and the Trainer"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print what is here."""
    rows = [
        dict(zip(("what", "found", "use"), row, strict=True))
        for row in (*_this(), *_extras(), *_machine())
    ]
    emit(render_rows(_COLUMNS, rows, chosen_format(args)), args)
    return DONE


def _this() -> Iterator[tuple[str, str, str]]:
    yield "vrambudget", __version__, "estimates"
    yield "Python", platform.python_version(), f"on {platform.system()} {platform.machine()}"
    for package, checked in CHECKED.items():
        yield f"{package}'s rules", default_version(package), f"checked: {', '.join(checked)}"


def _extras() -> Iterator[tuple[str, str, str]]:
    for extra, package, use in _EXTRAS:
        install = f"vrambudget[{extra}]" if extra else package
        yield package, installed_version(package) or f"- (pip install '{install}')", use


def _machine() -> Iterator[tuple[str, str, str]]:
    try:
        gpu = find_gpu("auto").assumed or ""
    except VramBudgetError as error:
        gpu = f"- ({error.message})"
    yield "GPU", gpu, "measure, --gpu auto"
    try:
        build = find_torch([own_python()])
        found = f"{build.version}, CUDA {build.cuda}"
    except VramBudgetError as error:
        found = f"- ({error.message})"
    yield "PyTorch's CUDA build", found, f"rehearse; {own_python()}"
    yield "C compiler", c_compiler() or "- (install gcc or clang)", "rehearse, once"
