"""What can be asked of real images: a label that needs no skill, and where the lungs lie."""
