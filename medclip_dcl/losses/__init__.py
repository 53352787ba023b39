"""The losses; importing one imports torch alone."""
