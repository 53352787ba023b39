"""What stages hand to each other: per artifact its columns, units, version, reader and writer."""
