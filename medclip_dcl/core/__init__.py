"""What every room stands on: artifacts, files, settings, errors, progress, randomness."""
