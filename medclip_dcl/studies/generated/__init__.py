"""Generated studies: chest films, reports and boxes with known truth, in MIMIC-CXR's shape."""
