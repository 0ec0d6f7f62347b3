"""How long `bastion.client.outputs.fetch` takes against `cp -r` of the same bytes, in turns: medians of three.

Also the CPU time of `fetch`, and of SHA-256 alone.

python bench/outputs.py [--mib=1024]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from bastion.adapters.folder.store import DirectoryStore
from bastion.client.jobs.job_info import JobInfo, Stage
from bastion.client.jobs.results import Result
from bastion.client.outputs import fetch, find_outputs
from bastion.core import limits
from bastion.core.bucket import keys, outputs
from bastion.core.bucket.manifest_proofs import ManifestProofs
from bastion.core.bucket.outputs import Manifest, Part, StoredFile
from bastion.core.run_keys import RunKey

_UID = "abcdefghij"
_KEY = RunKey(bytes(32))


def _store_file(store: DirectoryStore, mib: int) -> None:
    place, parts = keys.outputs("job", _UID, 0), []
    for number in range(mib * 1024 * 1024 // limits.OUTPUT_PART_BYTES):
        data = os.urandom(limits.OUTPUT_PART_BYTES)
        name = f"0000000001/parts/model/{number:06d}"
        store.put(place + name, data, generation=0)
        parts.append(Part(object=name, size=len(data), sha256=hashlib.sha256(data).hexdigest()))
    file = StoredFile(mode=0o644, mtime_ns=time.time_ns(), parts=tuple(parts))
    manifest = Manifest(run=f"{_UID}-1", seq=1, files={"model": file})
    data = ManifestProofs(place=place).to_bytes(manifest, _KEY)
    store.put(place + outputs.manifest_name(1), data, generation=0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=1024)
    given = parser.parse_args()
    result = Result.model_validate({"uid": _UID, "attempts": [{"number": 1, "public_key": _KEY.public}]})
    info = JobInfo(name="job", uid=_UID, stage=Stage.COMPLETED, result=result)
    times: dict[str, list[float]] = {"cp": [], "fetch": [], "fetch again": []}
    cpu: dict[str, list[float]] = {"fetch": [], "fetch again": [], "SHA-256": []}
    with tempfile.TemporaryDirectory() as folder:
        bucket = Path(folder) / "bucket"
        store = DirectoryStore(bucket, fsync=False)
        _store_file(store, given.mib)
        for turn in range(3):
            copy, to = Path(folder) / f"cp-{turn}", Path(folder) / f"to-{turn}"
            begun = time.monotonic()
            subprocess.run(["cp", "-r", str(bucket / "outputs"), str(copy)], check=True)
            times["cp"].append(time.monotonic() - begun)
            for name in ("fetch", "fetch again"):
                begun, used = time.monotonic(), time.process_time()
                assert fetch(store, find_outputs(store, info), to).complete
                times[name].append(time.monotonic() - begun)
                cpu[name].append(time.process_time() - used)
            block, used = bytes(1 << 20), time.process_time()
            for _ in range(given.mib):
                hashlib.sha256(block).digest()
            cpu["SHA-256"].append(time.process_time() - used)
            subprocess.run(["rm", "-r", str(copy), str(to)], check=True)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    print(", ".join(f"{name} {taken:.2f} s" for name, taken in medians.items()), f"for {given.mib} MiB")
    print("CPU:", ", ".join(f"{name} {statistics.median(used):.2f} s" for name, used in cpu.items()))
    print(f"fetch: {medians['fetch'] / medians['cp']:.2f} x cp; load {os.getloadavg()[0]:.0f}")


if __name__ == "__main__":
    main()
