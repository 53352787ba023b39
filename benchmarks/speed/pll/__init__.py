"""Speed, exactness and memory of pseudo-log-likelihoods beside their peers."""
