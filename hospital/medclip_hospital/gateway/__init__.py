"""The gateway between a hospital's image flow and the service: images in, DICOM answers out."""
