"""Speed, exactness and memory of pseudo-log-likelihoods against their peers."""
