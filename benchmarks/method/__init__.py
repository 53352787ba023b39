"""Which objective wins, on known truth: `python -m benchmarks.method`."""
