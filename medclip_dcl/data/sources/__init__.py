"""Sources of studies: one module for each kind, and the boxes and labels that go with them."""
