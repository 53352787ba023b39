"""What the method does on known truth, on real studies, and to its own figures."""
