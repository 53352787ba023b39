"""Questions put to a trained model; one code path for evaluation and service."""
