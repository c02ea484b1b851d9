"""The recorder of a rehearsed Python; `mark(phase)` names a phase from inside a script."""
