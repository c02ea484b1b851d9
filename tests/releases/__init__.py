"""For maintainers: what a new release of a library changes. `python -m tests.releases --help`."""
