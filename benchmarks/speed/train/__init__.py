"""Speed and memory of the training loop against its own bare step."""
