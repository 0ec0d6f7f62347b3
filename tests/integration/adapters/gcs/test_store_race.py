"""Processes that race on one object through the real library, while requests fail, lose no update and double none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gcs_storage import ALL_FAULTS, HASTY, Storage

PROCESSES = 3
UPDATES = 30

# Adds its lines one by one, by compare-and-swap. What came of a write that nobody can tell, the object itself tells.
WRITER = """
import sys
from bastion.adapters.bucket_requests.retry import Patience
from bastion.adapters.gcs.store import GcsStore
from bastion.core.errors import PreconditionFailed, StoreUnavailable

bucket, name, method, updates, patience = sys.argv[1:]
store = GcsStore(bucket, write_interval_seconds=0, patience=eval(patience))
for number in range(int(updates)):
    line = f"{name}-{number}\\n".encode()
    while line not in (stored := store.get("lines")).data.splitlines(keepends=True):
        try:
            if method == "put":
                store.put("lines", stored.data + line, generation=stored.meta.generation)
            else:
                store.append("lines", line, generation=stored.meta.generation)
        except (PreconditionFailed, StoreUnavailable):
            pass
"""


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    storage = Storage(tmp_path / "buckets", rules=ALL_FAULTS, seed=7)
    storage.open()
    yield storage
    storage.close()


@pytest.mark.parametrize("method", ["put", "append"])
def test_racing_processes_lose_no_update_and_double_none(storage: Storage, method: str) -> None:
    bucket = storage.new_bucket()
    storage.store(bucket, patience=HASTY).put("lines", b"", generation=0)
    environment = {**os.environ, "STORAGE_EMULATOR_HOST": storage.url}
    patience = repr(HASTY)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, bucket, f"writer-{number}", method, str(UPDATES), patience], env=environment
        )
        for number in range(PROCESSES)
    ]
    try:
        assert [writer.wait(90) for writer in writers] == [0] * PROCESSES
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    lines = storage.store(bucket, patience=HASTY).get("lines").data.decode().split()
    assert sorted(lines) == sorted(f"writer-{p}-{number}" for p in range(PROCESSES) for number in range(UPDATES))
    for process in range(PROCESSES):
        mine = [line for line in lines if line.startswith(f"writer-{process}-")]
        assert mine == [f"writer-{process}-{number}" for number in range(UPDATES)]
