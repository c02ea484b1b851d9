"""Programs: what a model's own code does, recorded as data, and played without torch.

`form` reads and writes the file, `expressions` its sizes, `unfold` its repeated layers; `player`
runs it on the engine; `config` is the configuration of a model that has a program, and `catalog`
knows the programs that come with the package.
"""
