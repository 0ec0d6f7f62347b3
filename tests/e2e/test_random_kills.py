"""kill -9 of the storage endpoint, or of an S3 server, and of the daemon at random, while jobs run: nothing that was
acknowledged is lost.

`make test` does it for some seconds, `make soak` for ten minutes ($BASTION_KILL_SECONDS). The moments depend on
$BASTION_KILL_SEED, what they hit does not: real processes are not repeatable.
"""

from __future__ import annotations

import json
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bastion.core.errors import NotFound, PreconditionFailed, StoreUnavailable
from bastion.ports import ObjectStore
from bastion.wiring.local import down
from bastion.wiring.local_home import LocalHome
from bastion.wiring.local_starter_quota import starter_quota
from bastion.wiring.roots import open_root
from tests.support.local_root import USER, LocalRoot
from tests.support.s3_server import S3Process
from tests.support.storage_process import StorageProcess
from tests.support.waiting import until

pytestmark = pytest.mark.e2e
SECONDS = float(os.environ.get("BASTION_KILL_SECONDS", "15"))
SEED = int(os.environ.get("BASTION_KILL_SEED", "1"))
LINES = 20


@dataclass
class Witnesses:
    """What was acknowledged, and how often the outcome was unknown."""

    jobs: dict[str, int] = field(default_factory=dict)
    created: set[str] = field(default_factory=set)
    increments: list[int] = field(default_factory=lambda: [0, 0])
    unknown: list[int] = field(default_factory=lambda: [0, 0])
    appended: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@pytest.fixture(params=["gs", "s3"])
def scheme(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def storage(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StorageProcess | S3Process]:
    if scheme == "s3":
        server = S3Process(tmp_path / "s3")
        server.start()
        server.server.client().create_bucket(Bucket="team")
        for name, value in server.server.env.items():
            monkeypatch.setenv(name, value)
        yield server
        server.kill()
        return
    storage = StorageProcess(tmp_path / "buckets", bucket="team")
    storage.start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
    yield storage
    storage.stop()


@pytest.fixture
def root(scheme: str, storage: StorageProcess | S3Process, tmp_path: Path) -> Iterator[LocalRoot]:
    home = LocalHome(tmp_path / "home")
    home.run_dir.mkdir(parents=True)
    url = f"{scheme}://team/e2e-bastion"
    root = LocalRoot(home=home, url=url, store=open_root(url))
    root.store.put("project-quotas/project-quotas.config", starter_quota(USER), generation=0)
    yield root
    for daemon in root.daemons:
        daemon.kill()
        daemon.wait()
    down(home, say=lambda _: None)


def until_known(operation: Callable[[], object]) -> bool:
    """Repeats a creation until the store says how it went; whether it was this very call that created it."""
    while True:
        try:
            operation()
            return True
        except StoreUnavailable:  # noqa: PERF203 - repeating is what the loop is for
            time.sleep(0.2)
        except PreconditionFailed:
            return False


def submit_jobs(root: LocalRoot, seen: Witnesses, witness: Path, over: threading.Event) -> None:
    number = 0
    while not over.is_set():
        number += 1
        # All hosts of a slice succeed: a failing one would end the others in the middle of their lines.
        name, code = f"job-{number}", 0 if number % 4 == 0 else number % 3
        command = (
            f'echo "$BASTION_RUN $BASTION_HOST_INDEX" >> {witness}; '
            f"for i in $(seq {LINES}); do echo line $i; sleep 0.05; done; exit {code}"
        )
        kind = "tpu-v4-16" if number % 4 == 0 and root.url.startswith("gs://") else ""
        # A job that the store calls present was created by an earlier try whose reply was lost.
        until_known(lambda n=name, c=command, k=kind: root.submit(n, c, instance_type=k))
        seen.jobs[name] = code
        over.wait(1.5)


def count_up(store: ObjectStore, seen: Witnesses, which: int, over: threading.Event) -> None:
    """Compare-and-swap increments of one counter, against the other thread doing the same."""
    while not over.is_set():
        try:
            try:
                stored = store.get("race/counter")
                value, generation = int(stored.data), stored.meta.generation
            except NotFound:
                value, generation = 0, 0
        except StoreUnavailable:
            continue
        try:
            store.put("race/counter", b"%d" % (value + 1), generation=generation)
        except PreconditionFailed:
            continue
        except StoreUnavailable:
            seen.unknown[which] += 1
            continue
        seen.increments[which] += 1
        over.wait(0.02)


def create_and_append(store: ObjectStore, seen: Witnesses, over: threading.Event) -> None:
    """One log that grows, and objects that are created once; a writer alone always finds out what happened."""
    number, generation = 0, 0
    while not over.is_set():
        number += 1
        key = f"race/object-{number:06d}"
        until_known(lambda k=key: store.put(k, k.encode(), generation=0))
        seen.created.add(key)
        line = f"{number:06d}\n"
        while True:
            try:
                generation = store.append("race/log", line.encode(), generation=generation).generation
                break
            except (StoreUnavailable, PreconditionFailed):
                try:
                    stored = store.get("race/log")
                except NotFound:
                    generation = 0
                    continue
                except StoreUnavailable:
                    continue
                generation = stored.meta.generation
                if stored.data.endswith(line.encode()):
                    break
        seen.appended.append(line)
        over.wait(0.02)


def kill_at_random(
    root: LocalRoot, storage: StorageProcess | S3Process, chance: random.Random, over: threading.Event
) -> list[int]:
    """Until it is `over` and each was killed; returns how often the endpoint and the daemon were."""
    killed = [0, 0]
    while not over.wait(chance.uniform(0.3, 3.0)) or min(killed) == 0:
        victim = chance.choice(["endpoint", "daemon", "both"])
        if victim != "daemon":
            storage.kill()
            killed[0] += 1
        if victim != "endpoint":
            root.daemons[-1].kill()
            root.daemons[-1].wait()
            killed[1] += 1
        over.wait(chance.choice([0.0, 0.1, 1.0, 3.0]))
        if victim != "daemon":
            storage.start()
        if victim != "endpoint":
            root.start_daemon()
    return killed


@pytest.mark.timeout(SECONDS + 300)
def test_whatever_was_acknowledged_is_there_after_kills_at_random(
    root: LocalRoot, storage: StorageProcess | S3Process, tmp_path: Path
) -> None:
    seen, over, witness = Witnesses(), threading.Event(), tmp_path / "witness"
    root.start_daemon()
    stores = [open_root(root.url) for _ in range(3)]
    threads = [
        threading.Thread(target=submit_jobs, args=(root, seen, witness, over)),
        threading.Thread(target=count_up, args=(stores[0], seen, 0, over)),
        threading.Thread(target=count_up, args=(stores[1], seen, 1, over)),
        threading.Thread(target=create_and_append, args=(stores[2], seen, over)),
    ]
    for thread in threads:
        thread.start()
    timer = threading.Timer(SECONDS, over.set)
    timer.start()
    try:
        killed = kill_at_random(root, storage, random.Random(SEED), over)
    finally:
        over.set()
        timer.cancel()
        for thread in threads:
            thread.join()
    print(
        f"killed the endpoint {killed[0]} times, the daemon {killed[1]} times; {len(seen.jobs)} jobs, "
        f"{len(seen.created)} objects, {sum(seen.increments)} increments, {sum(seen.unknown)} of unknown outcome"
    )
    check_objects(root.store, seen)
    until(lambda: all(result(root, name) is not None for name in seen.jobs), 120)
    check_jobs(root, seen, witness)
    # A request of a host that was ended may reach the endpoint after the run was put away; the daemon sweeps that.
    until(lambda: not left(root), 120)


def left(root: LocalRoot) -> list[str]:
    """Objects that no job has any more when all are over; claims and orders stay for an hour."""
    prefixes = ("jobs/active/", "jobs/states/", "runs/")
    return [m.key for prefix in prefixes for m in root.store.list(prefix) if not m.key.endswith("/order")]


def result(root: LocalRoot, name: str) -> dict[str, object] | None:
    """The job's result once it is over and its state is gone."""
    try:
        document = json.loads(root.store.get(f"jobs/complete/{name}").data)
    except NotFound:
        return None
    return document["result"] if root.store.head(f"jobs/states/{name}") is None else None


def check_objects(store: ObjectStore, seen: Witnesses) -> None:
    found = {meta.key for meta in store.list("race/object-")}
    assert seen.created <= found
    for key in sorted(found)[-50:]:
        assert store.get(key).data == key.encode()
    assert store.get("race/log").data.decode().splitlines(keepends=True) == seen.appended
    counted = int(store.get("race/counter").data)
    assert sum(seen.increments) <= counted <= sum(seen.increments) + sum(seen.unknown)


def check_jobs(root: LocalRoot, seen: Witnesses, witness: Path) -> None:
    incarnations = witness.read_text().splitlines()
    assert len(incarnations) == len(set(incarnations)), "no host of a run ran the command twice"
    for name, code in seen.jobs.items():
        found = result(root, name)
        assert found is not None
        attempts = found["attempts"]
        assert isinstance(attempts, list)
        assert (found["exit_code"], len(attempts)) == (code, 1), f"{name}: {found}"
        hosts = 2 if int(name.removeprefix("job-")) % 4 == 0 and root.url.startswith("gs://") else 1
        for host in range(hosts):
            segments = [
                root.store.get(meta.key).data
                for meta in root.store.list(f"logs/{name}.d/{found['uid']}-1/worker-{host}/")
            ]
            lines = re.findall(r"^\S+ stdout F line (\d+)$", b"".join(segments).decode(), re.MULTILINE)
            assert lines == [str(n) for n in range(1, LINES + 1)], f"{name} worker {host}: {lines}"
        history = root.store.get(f"history/jobs/{name}").data.decode().splitlines()
        numbers = [int(line.split()[1].partition("#")[2]) for line in history]
        assert numbers == list(range(1, len(numbers) + 1)), f"{name}: {history}"
