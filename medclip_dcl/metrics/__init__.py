"""Arrays in, numbers out: classification, localisation, retrieval and their intervals."""
