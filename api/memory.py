"""How this process keeps and gives back memory: the activations of a forward pass are reused.

glibc maps large blocks again for every forward pass and gives its other threads small heaps of
their own, which costs a sixth of the time of a ResNet-18. One heap that is neither mapped nor
trimmed is as fast in a thread as in the main thread. What it holds is given back after another
model was loaded. Elsewhere than on glibc this does nothing.
"""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # malloc.h
_NEVER = 2**31 - 1


def keep_memory() -> bool:
    """Let freed memory stay with this process; whether the C library does so.

    Call it before the first thread is started: later, threads have heaps of their own already,
    and those are trimmed all the same.
    """
    mallopt = _function("mallopt")
    if mallopt is None:
        return False
    options = ((_M_ARENA_MAX, 1), (_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _NEVER))
    return all(mallopt(name, value) for name, value in options)


def give_memory_back() -> None:
    """Return freed memory to the system; the next forward pass asks for it again."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


def _function(name: str) -> "ctypes._NamedFuncPointer | None":
    """A function of glibc; None where the C library is another one."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if library is None or not hasattr(library, "gnu_get_libc_version"):
        return None
    function: ctypes._NamedFuncPointer = getattr(library, name)
    return function
