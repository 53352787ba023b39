"""The service: a published model and its retrieval index over HTTP."""
