"""Estimates here are those of the baseline's versions, whatever is installed."""

import os

from vrambudget.config.versions import BASELINE

os.environ.update({f"VRAMBUDGET_{name.upper()}": version for name, version in BASELINE.items()})
