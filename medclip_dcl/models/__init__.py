"""The two encoders and the similarity between them."""
