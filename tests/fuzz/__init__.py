"""Hostile input of every kind, and what has to come of it. `tests/test_properties.py` runs a few.

A longer run, before a release (from the repository's root; pytest does not collect it):

    PYTHONPATH=tests python -m fuzz --cases 100000 --seed 1

It prints what came of the cases as JSON, and each case that broke a law, by its seed, on stderr:

    PYTHONPATH=tests python -m fuzz --cases 1 --seed 1234     that case alone

    PYTHONPATH=tests python -m fuzz --only "run files"        one kind of input (`laws.LAWS`)
    VRAMBUDGET_PYTHON=python PYTHONPATH=tests python -m fuzz --only rehearse --cases 100

The exit code is 1 if a law was broken. Chunks of different seeds add up: `--seed 100001` is next.
"""
