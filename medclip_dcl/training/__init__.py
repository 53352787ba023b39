"""Dataset, objective and trainer."""
