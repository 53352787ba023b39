"""The losses, and what they are told about negatives."""
