"""Answers as DICOM objects: structured report, presentation state, secondary capture."""
