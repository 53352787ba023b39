"""The image-only experiment."""
