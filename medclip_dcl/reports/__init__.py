"""Reports to sentences and claims."""
