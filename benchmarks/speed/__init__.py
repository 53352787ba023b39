"""How fast, beside peers and limits: loss, likelihood, training, preparing, serving, retrieval."""
