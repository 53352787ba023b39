"""DICOM files: metadata, data set, pixel data."""
