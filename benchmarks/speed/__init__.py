"""How fast, next to peers and limits: loss, likelihood, training, preparing, serving, retrieval."""
