"""The fields of a job in groups: a file for each group and the words that its values are made of.

A group is a set of settings whose `problems` are about its own fields; `config.job.Job` is all
groups in one. A group's title stands over its options in `--help`.
"""
