"""Recording a model as a program: what its own code does while it is traced, as data.

`listener` writes down what one traced job does; `merging` makes one program of several recordings;
`folding` writes identical layers once; `configurations` decides which keys of a configuration are
free. `vrambudget.program` reads and plays the file, without torch.
"""
