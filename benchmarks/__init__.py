"""Benchmarks: each prints a table and ends with one JSON object."""
