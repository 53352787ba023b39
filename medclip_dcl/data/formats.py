"""First bytes -> format: what is looked at before anything is parsed."""

_DICOM_AT = 128
HEAD = 132
"""Bytes that tell the format."""


def is_dicom(data: bytes) -> bool:
    """Return whether a file starts as DICOM does.

    Args:
        data: at least its first `HEAD` bytes.

    Returns:
        Whether `DICM` follows a preamble of 128 bytes. A bare data set without it is
        not accepted: nothing tells it from any other bytes.

    Source: DICOM PS3.10, 7.1.
    """
    return data[_DICOM_AT:HEAD] == b"DICM"


def is_image(data: bytes) -> bool:
    """Return whether a file starts as one of the accepted formats does.

    Args:
        data: at least its first `HEAD` bytes.

    Returns:
        Whether it is DICOM, JPEG or PNG by its first bytes.
    """
    return is_dicom(data) or data[:3] == b"\xff\xd8\xff" or data[:8] == b"\x89PNG\r\n\x1a\n"
