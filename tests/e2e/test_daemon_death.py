"""A real daemon dies by SIGKILL while real hosts run a job; the job does not notice."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bastion.core.errors import NotFound
from tests.support.local_root import LocalRoot
from tests.support.waiting import until

pytestmark = pytest.mark.e2e
# `make long` tries every write of the job's life; the simulation does so in every run (`tests/sim/test_crashes.py`).
POINTS = range(1, 21, 1 if os.environ.get("BASTION_DEATHS") == "all" else 3)
DYING = str(Path(__file__).with_name("dying_daemon.py"))


def result(root: LocalRoot, name: str) -> dict[str, object] | None:
    """The job's result once it is over and its state is gone."""
    try:
        document = json.loads(root.store.get(f"jobs/complete/{name}").data)
    except NotFound:
        return None
    return document["result"] if root.store.head(f"jobs/states/{name}") is None else None


def live_through(root: LocalRoot, point: int, witness: Path) -> None:
    """One job of two hosts whose daemon dies at its `point`th write and is replaced by an ordinary one."""
    dying = root.start_daemon(DYING, str(point))
    # The first to fail ends the other host's command, so it fails when both were here; where one never comes, anyway.
    both_here = f'for _ in $(seq 300); do [ "$(wc -l < {witness})" -ge 2 ] && break; sleep 0.1; done'
    command = f'echo "$BASTION_RUN $BASTION_HOST_INDEX" >> {witness}; {both_here}; sleep 1; exit 7'
    root.submit("job", command, instance_type="tpu-v4-16")
    until(lambda: dying.poll() is not None or result(root, "job"))
    root.start_daemon()
    until(lambda: result(root, "job"))
    found = result(root, "job")
    assert found is not None
    assert (found["outcome"], found["exit_code"]) == ("failed", 7), f"killed at write {point}: {found}"
    lines = sorted(witness.read_text().splitlines())
    assert lines == [f"{found['uid']}-1 0", f"{found['uid']}-1 1"], f"killed at write {point}: not one incarnation"
    history = root.store.get("history/jobs/job").data.decode().splitlines()
    numbers = [int(line.split()[1].partition("#")[2]) for line in history]
    assert numbers == list(range(1, len(numbers) + 1)), f"killed at write {point}: {history}"


@pytest.mark.timeout(300)
def test_a_job_survives_the_daemon_killed_at_any_of_its_writes(
    new_root: Callable[[str], LocalRoot], tmp_path: Path
) -> None:
    roots = {point: new_root(f"point-{point}") for point in POINTS}
    # Four at a time: most of a job's life is waiting.
    with ThreadPoolExecutor(4) as pool:
        lives = [pool.submit(live_through, root, point, tmp_path / f"w{point}") for point, root in roots.items()]
        for life in lives:
            life.result()


def test_a_daemon_killed_while_a_slice_job_runs_is_replaced_and_the_exit_code_arrives(
    new_root: Callable[[str], LocalRoot], tmp_path: Path
) -> None:
    root = new_root("adopt")
    first = root.start_daemon()
    witness, go = tmp_path / "witness", tmp_path / "go"
    command = f'echo "$BASTION_RUN $BASTION_HOST_INDEX" >> {witness}; until [ -e {go} ]; do sleep 0.1; done; exit 9'
    root.submit("job", command, instance_type="tpu-v4-16")
    until(lambda: witness.exists() and len(witness.read_text().splitlines()) == 2)
    first.kill()
    first.wait()
    before = witness.read_text()
    root.start_daemon()
    until(lambda: b'"phase":"running"' in root.store.get("status/current.json").data)
    go.touch()
    until(lambda: result(root, "job"))
    found = result(root, "job")
    assert found is not None
    assert found["exit_code"] == 9
    assert witness.read_text() == before, "it ran once"
