"""Whether the job's PyTorch, CUDA or transformers is a release or a later one.

A rule that changed stands next to the one before it and names the release that changed it:

    q = arange(queries) if transformers_since(5, 4) else positions

What a job follows is always a version that was checked (config/versions.py). The releases of
transformers are exact, read from its sources of 4.57, 5.0 to 5.4, 5.8, 5.12 and 5.14 to 5.17; those
of PyTorch and CUDA are the first checked ones that have the rule.
"""

from vrambudget.engine.context import context


def torch_since(major: int, minor: int) -> bool:
    """Whether the job runs this release of PyTorch or a later one."""
    return context.platform.torch >= (major, minor)


def cuda_since(major: int, minor: int) -> bool:
    """Whether the job's PyTorch is built with this release of CUDA or a later one."""
    return context.platform.cuda >= (major, minor)


def transformers_since(major: int, minor: int) -> bool:
    """Whether the job runs this release of transformers or a later one."""
    return context.options.transformers >= (major, minor)
