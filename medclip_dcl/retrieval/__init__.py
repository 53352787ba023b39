"""Embeddings to a retrieval index, and queries to ranked ids."""
