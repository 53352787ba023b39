"""Reports to sections, sentences and labels."""
