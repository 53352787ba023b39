"""What each objective does on real images with real reports (Open-i), by experts' labels."""
