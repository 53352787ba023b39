"""Questions put to a model; one code path offline and online."""
