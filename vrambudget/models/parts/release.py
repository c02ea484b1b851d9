"""Which modelling code a job runs: transformers' of today, or that of its fourth major release.

The families' own modules are written after 5.17; where 4.57 did otherwise they ask here.
"""

from vrambudget.engine.context import context

_FIFTH = (5, 0)


def is_transformers_4() -> bool:
    """Whether the job runs transformers 4."""
    return context.options.transformers < _FIFTH
