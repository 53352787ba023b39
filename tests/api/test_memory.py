import sys

import pytest

from tests.support.processes import ended

PAGES = 64 * 256  # of a block
COUNT = """
import resource, sys, threading
from api.memory import give_memory_back, keep_memory
if sys.argv[1] == "kept":
    assert keep_memory()
BLOCK = 64 << 20  # bytes, given back at once
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        b"1" * BLOCK
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def run():
    for _ in range(8):
        b"1" * BLOCK
    print(faults())
thread = threading.Thread(target=run)
thread.start()
thread.join()
resident = lambda: int(open("/proc/self/statm").read().split()[1]) >> 8
before = resident()
give_memory_back()
print(before - resident())
"""


def count(mode: str) -> tuple[int, int]:
    """Page faults of a thread that takes large blocks, and MiB given back at the end."""
    done = ended([sys.executable, "-c", COUNT, mode], check=True)
    faults, given_back = map(int, done.stdout.split())
    return faults, given_back


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone is told")
def test_large_blocks_are_reused_in_threads_until_they_are_given_back() -> None:
    default, reused = count("default"), count("kept")
    assert default[0] > 8 * PAGES  # each block is mapped again
    assert reused[0] < 2 * PAGES
    assert reused[1] >= 60
