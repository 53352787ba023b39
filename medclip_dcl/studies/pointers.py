"""Pointer files: a few lines that git-LFS or git-annex leaves where content was not fetched."""

_STARTS = (b"version https://git-lfs.github.com/spec/", b"/annex/objects/", b"../.git/annex/")
POINTER_BYTES = 1024
"""No pointer is longer."""


def is_pointer(head: bytes) -> bool:
    """Say whether bytes are those of a pointer file.

    Args:
        head: the first bytes of a file, 64 or more where it has them.

    Returns:
        Whether they start as such a file does.

    Source: git-LFS specification, "The Pointer"; git-annex, "pointer file".
    """
    return head.startswith(_STARTS)
