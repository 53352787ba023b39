"""Raw studies to a manifest, and films to pixels."""
