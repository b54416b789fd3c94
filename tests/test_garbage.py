"""What a start leaves behind is given back to the system."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import ctypes
from pathlib import Path
from octavo.garbage import give_memory_back

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

ctypes.CDLL(None).mallopt(-3, 32 << 20)  # large blocks come from the heap
ctypes.CDLL(None).mallopt(-1, (1 << 31) - 1)  # and what is freed there stays
blocks = [b"x" * (1 << 20) for _ in range(64)]
last = b"x" * (1 << 20)
del blocks
before = resident()
give_memory_back()
print(before - resident())
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_freed_memory_goes_back_to_the_system() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(ended.stdout) > 50 << 20
