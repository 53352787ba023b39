"""One module for each kind of archive."""
