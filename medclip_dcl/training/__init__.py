"""The training loop and what it reads."""
