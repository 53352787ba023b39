"""A published model that answers: prompts, zero-shot scores, grounding, the `Predictor`."""
