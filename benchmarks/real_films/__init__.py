"""What can be asked of real films: a label that needs no skill, and where the lungs lie."""
