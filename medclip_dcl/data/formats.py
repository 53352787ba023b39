"""First bytes -> format: what is looked at before anything is parsed.

Pointer files: a few lines that git-LFS or git-annex leaves where content was not fetched.
"""

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


_STARTS = (b"version https://git-lfs.github.com/spec/", b"/annex/objects/", b"../.git/annex/")
POINTER_BYTES = 1024
"""No pointer is longer."""


def is_pointer(head: bytes) -> bool:
    """Return whether bytes are those of a pointer file.

    Args:
        head: the first bytes of a file, 64 or more where it has them.

    Returns:
        Whether they start as such a file does.

    Source: git-LFS specification, "The Pointer"; git-annex, "pointer file".
    """
    return head.startswith(_STARTS)
