"""Copies of a run's products that may leave: models for others' software, datasets, cards."""
