"""The architectures, one file each, after the modelling code that they are named for."""
