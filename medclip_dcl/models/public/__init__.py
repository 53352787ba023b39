"""Public checkpoints: encoders and whole models that others made, a family of models a module.

The module of a family has `FAMILY` and `read(folder)`, which returns a `Checkpoint`, or None for a
folder of another layout. Nothing of a folder is run: weights are read as plain tensors, and an
unknown or missing key is an error that names it.
"""
