"""One self-contained HTML page about a run: what went in, what was learned, how well it does."""
