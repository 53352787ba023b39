"""From an archive to a manifest, and from image files to prepared pixels."""
