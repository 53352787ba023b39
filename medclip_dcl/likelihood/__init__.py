"""Sentences to likelihoods, and likelihoods to eta."""
