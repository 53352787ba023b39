"""Generated studies with known truth, in the shape of MIMIC-CXR."""
