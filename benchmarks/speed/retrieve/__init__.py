"""What two-stage retrieval finds of an exhaustive search, and what a query costs."""
