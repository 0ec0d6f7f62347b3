"""That buffers of a segment's size are not made of fresh pages each time."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SEGMENTS = 500
PROGRAM = f"""
import resource, threading
from bastion.proxy.serving.freed_memory import keep_freed_memory
from bastion.proxy.sealed.sealed_stream import Plaintext, SealedStream
from bastion.proxy.sealed.sealing import Sealing
from bastion.storage_wire.declared_sums import Declared

keep_freed_memory()
record = memoryview(bytes(16384))

def work():
    pieces = (bytes(record) for _ in range({SEGMENTS * 16}))
    for _ in SealedStream(Sealing(bytes(32))).rest(Plaintext(pieces), Declared()):
        pass
    print(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt)

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries cannot be told")
def test_sealing_does_not_have_its_pages_cleared_for_each_segment() -> None:
    faults = int(subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True).stdout)
    # About 12 a segment without it.
    assert faults < 3 * SEGMENTS
