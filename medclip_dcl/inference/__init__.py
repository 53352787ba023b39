"""A trained model that answers questions: the same code for evaluation and service."""
