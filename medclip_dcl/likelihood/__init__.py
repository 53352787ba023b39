"""Sentences to pseudo-log-likelihoods, and likelihoods to eta."""
