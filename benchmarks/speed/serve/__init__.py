"""What the service makes of a model: its throughput, and how it stands loads."""
