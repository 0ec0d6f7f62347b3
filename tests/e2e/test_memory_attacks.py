"""A real daemon with 2 GB of address space, and objects that others wrote to exhaust it; a stranger's job runs beside.

By hand: `BASTION_ATTACK_SECONDS=600 BASTION_ATTACK=specs pytest -n 0 tests/e2e/test_memory_attacks.py`; without the
second, all attacks at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import NotFound, PreconditionFailed
from tests.support.local_root import USER, LocalRoot
from tests.support.waiting import until

pytestmark = pytest.mark.e2e
LIMITED = str(Path(__file__).with_name("limited_daemon.py"))
SECONDS = float(os.environ.get("BASTION_ATTACK_SECONDS", "30"))
ATTACKS = {"specs", "log", "reports", "lease"}
CHOSEN = {chosen} if (chosen := os.environ.get("BASTION_ATTACK")) else ATTACKS
SPECS = 1600
LOG_BYTES = 5 * 10**9
REPORTS = 60
# Alone, the daemon has some 75 MiB; each spec may cost its own size, and what a job costs.
RESIDENT_MAX_BYTES = 600 * 2**20


def spec_of_empty_lists(name: str, filling: int) -> bytes:
    """A valid spec of at most 64 KiB, with so many `{"":[]}`; what is left is text."""
    document = {
        "version": 1,
        "name": name,
        "command": "true",
        "metadata": {
            "user_id": USER,
            "project_id": "default",
            "creation_time": "2026-01-02 03:04:05.000006",
            "resources": {"v4": limits.RESOURCE_MAX},
        },
        "x": [{"": []}] * filling,
    }
    data = json.dumps(document, separators=(",", ":")).encode()
    text = b"\xf0\x9f\x92\xa3" + os.urandom(32 * 1024).hex().encode()
    return data[:-1] + b',"y":"' + text[: limits.SPEC_MAX_BYTES - len(data) - 10] + b'"}'


def write_files(root: LocalRoot, prefix: str, objects: Iterator[tuple[str, bytes]]) -> None:
    """Objects as another program writes them into the folder; durability is not what is tested."""
    folder = Path(root.url) / prefix
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in objects:
        (folder / name).write_bytes(data)


def attack(root: LocalRoot) -> None:
    if "specs" in CHOSEN:
        # Half of them have too many values, half of them as many as they may.
        most = (limits.SPEC_MAX_VALUES - 60) // 4
        write_files(
            root,
            keys.JOBS_ACTIVE,
            ((f"bomb-{k}", spec_of_empty_lists(f"bomb-{k}", 8000 if k % 2 else most)) for k in range(SPECS)),
        )
    if "log" in CHOSEN:
        log = Path(root.url) / keys.log("e2e-bastion")
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        os.truncate(log, LOG_BYTES)
    if "lease" in CHOSEN:
        document = b'{"format":1,"owner":"mallory","epoch":%s,"released":true}' % (b"9" * 4300)
        present = root.store.head(keys.LEASE)
        root.store.put(keys.LEASE, document, generation=present.generation if present else 0)


def attack_the_run(root: LocalRoot, run: str) -> None:
    if "reports" in CHOSEN:
        report = {"format": 1, "run": run, "token": "", "phase": "running", "message": "x" * 2**20}
        reports = ((str(host), json.dumps({**report, "host": host})[: 2**20].encode()) for host in range(1, REPORTS))
        write_files(root, f"runs/{run}/reports", reports)


def document(root: LocalRoot, key: str) -> dict[str, object] | None:
    try:
        found: dict[str, object] = json.loads(root.store.get(key).data)
    except NotFound:
        return None
    return found


def memory(daemon: subprocess.Popen[bytes], field: str) -> int:
    """Bytes, as /proc says them."""
    lines = Path(f"/proc/{daemon.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


@pytest.mark.timeout(max(300, SECONDS * 2))
def test_a_strangers_job_runs_and_ends_beside_four_attacks_on_the_daemons_memory(
    new_root: Callable[[str], LocalRoot], tmp_path: Path
) -> None:
    root = new_root("attacked")
    attack(root)
    daemon = root.start_daemon(LIMITED)
    began = time.monotonic()
    gate = tmp_path / "gate"
    root.submit("honest", f"until [ -e {gate} ]; do sleep 0.1; done; exit 3")
    until(lambda: daemon.poll() is not None or root.store.head(keys.state("honest")), 150)
    state = document(root, keys.state("honest"))
    assert daemon.poll() is None and state is not None, (root.home.path / "daemons.log").read_text()[-3000:]
    # Of 5a49ae8, too, whose records lie at the top.
    record = state if "uid" in state else state["metadata"]["record"]  # type: ignore[index]
    run = f"{record['uid']}-1"  # type: ignore[index]
    until(lambda: root.store.head(keys.report(run, 0)), 60)
    attack_the_run(root, run)
    again = 0
    while time.monotonic() - began < SECONDS:
        again += 1
        if again % 10 == 0:  # once more, as the daemon goes on: every object has a new generation
            with contextlib.suppress(PreconditionFailed):  # the daemon renewed its lease meanwhile
                attack(root)
            attack_the_run(root, run)
        root.submit(f"also-{again}", "true")
        until(lambda name=f"also-{again}": root.store.head(keys.complete(name)), 300)  # type: ignore[misc]
        time.sleep(5)
    if "specs" in CHOSEN:
        for prefix in (keys.JOBS_STATES, keys.JOBS_INVALID):
            until(lambda prefix=prefix: len(list(root.store.list(prefix))) >= SPECS // 2, 120)  # type: ignore[misc]
    gate.touch()
    until(lambda: daemon.poll() is not None or root.store.head(keys.complete("honest")), 60)
    result = document(root, keys.complete("honest"))
    assert result is not None
    assert (result["result"]["outcome"], result["result"]["exit_code"]) == ("failed", 3)  # type: ignore[index]
    assert daemon.poll() is None
    published = document(root, keys.STATUS)
    assert published is not None
    assert published["daemon"]["failed_ticks"] == 0  # type: ignore[index]
    peak = memory(daemon, "VmHWM")
    print(f"{time.monotonic() - began:.0f} s, {again} more jobs, at most {peak / 2**20:.0f} MiB resident")
    assert peak < RESIDENT_MAX_BYTES
