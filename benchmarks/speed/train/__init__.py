"""Speed and memory of the training loop beside its own bare step."""
