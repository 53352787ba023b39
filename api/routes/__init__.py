"""One file per question; a route checks its message, asks once, and returns a message."""
