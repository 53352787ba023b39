"""One self-contained page about a recipe: what went in, what was learned, what it can do."""
