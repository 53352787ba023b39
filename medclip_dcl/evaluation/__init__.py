"""The tasks of the papers, their metrics, and intervals."""
