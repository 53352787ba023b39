"""Small wrong changes to our own code, and how many of them the tests notice."""
