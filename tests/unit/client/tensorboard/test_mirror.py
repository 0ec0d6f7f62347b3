"""Event files from a host's folder through the bucket to TensorBoard's own reader."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from bastion.agent.backoff import Backoff
from bastion.agent.outputs.store import OutputStore
from bastion.agent.outputs.sync import OutputSync
from bastion.client.jobs.goodput import Life
from bastion.client.tensorboard import goodput_scalars
from bastion.client.tensorboard.mirror import JobMirror
from bastion.core.bucket import keys, outputs
from bastion.core.bucket.manifest_proofs import ManifestProofs
from bastion.core.goodput import Run
from bastion.core.run_keys import RunKey
from bastion.ports import ObjectStore
from bastion.testing.counting_store import CountingStore
from bastion.testing.memory_store import MemoryStore
from tests.support.curves import curve

UID = "abcdefghij"
KEY = RunKey(bytes(32))
BEGAN = 1_700_000_000


class Host:
    """A host's output folder with an event file that grows."""

    def __init__(self, store: ObjectStore, folder: Path, *, host: int = 0, run: int = 1, began: int = BEGAN) -> None:
        self.path = folder / outputs.TENSORBOARD / f"events.out.tfevents.{began}.host.1.0"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        self._file = self.path.open("ab")
        self._writer = RecordWriter(self._file)
        self._write(Event(wall_time=began, file_version="brain.Event:2"))
        self.sync = OutputSync(
            OutputStore(
                store,
                keys.outputs("job", UID, host),
                proofs=ManifestProofs(place=keys.outputs("job", UID, host), public_keys={f"{UID}-{run}": KEY.public}),
                run_key=KEY,
            ),
            folder,
            run=f"{UID}-{run}",
            backoff=Backoff(Random(1)),
            on_done=lambda: None,
            settle_seconds=0.0,
            part_bytes=256,
        )

    def _write(self, event: Event) -> None:
        self._writer.write(event.SerializeToString())
        self._file.flush()

    def log(self, *steps: int, value: float = 1.0) -> None:
        for step in steps:
            summary = Summary(value=[Summary.Value(tag="loss", simple_value=value)])
            self._write(Event(wall_time=BEGAN + step, step=step, summary=summary))

    def store(self) -> None:
        self.sync.sync_once()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_a_running_job_has_a_curve_that_grows_by_what_is_new(store: MemoryStore, tmp_path: Path):
    counted = CountingStore(store)
    host, mirror = Host(store, tmp_path / "out"), JobMirror(counted, "job", UID, tmp_path / "logs")
    host.log(*range(50))
    host.store()
    mirror.refresh([])
    assert curve(tmp_path / "logs") == [(step, 1.0) for step in range(50)]
    inode = next((tmp_path / "logs").glob("*.tfevents.*")).stat().st_ino
    host.log(50, 51)
    host.store()
    mirror.refresh([])
    assert [step for step, _ in curve(tmp_path / "logs")] == [*range(52)]
    assert next((tmp_path / "logs").glob("*.tfevents.*")).stat().st_ino == inode, "TensorBoard reads on in it"
    counted.reset()
    mirror.refresh([])
    assert counted.read == []


@pytest.mark.parametrize("steps", [40, 60])
@pytest.mark.parametrize("kept", [True, False])
def test_a_file_that_was_replaced_is_copied_whole_and_not_appended(
    store: MemoryStore, tmp_path: Path, steps: int, kept: bool
):
    first = Host(store, tmp_path / "out")
    first.log(*range(40), value=1.0)
    first.store()
    mirror = JobMirror(store, "job", UID, tmp_path / "logs")
    mirror.refresh([])
    first.path.unlink()
    second = Host(store, tmp_path / "out")
    second.log(*range(steps), value=2.0)
    second.store()
    if not kept:  # the command was started again on the same folder
        mirror = JobMirror(store, "job", UID, tmp_path / "logs")
    mirror.refresh([])
    assert curve(tmp_path / "logs") == [(step, 2.0) for step in range(steps)]


def test_a_jobs_files_never_take_the_names_of_the_mirrors_own(store: MemoryStore, tmp_path: Path):
    host = Host(store, tmp_path / "out")
    host.log(1)
    for name in (
        "bastion/events.out.tfevents.0000000000.bastion",
        "_bastion/events.out.tfevents.0000000000.bastion",
        f"events.out.tfevents.{BEGAN}.!restart",
    ):
        path = host.path.parent / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(host.path.read_bytes())
    host.store()
    logs = tmp_path / "logs"
    JobMirror(store, "job", UID, logs).refresh([])
    goodput_scalars.write(logs, Life(queued_at=0.0, until=10.0, runs=()))
    found = {str(path.relative_to(logs)) for path in logs.rglob("*tfevents*")}
    assert found == {
        host.path.name,
        "_bastion/events.out.tfevents.0000000000.bastion",
        "__bastion/events.out.tfevents.0000000000.bastion",
        f"events.out.tfevents.{BEGAN}.!restart_",
        "bastion/events.out.tfevents.0000000000.bastion",
    }
    assert curve(logs / "bastion") == []


def test_of_two_files_with_one_name_one_is_copied_and_stays(store: MemoryStore, tmp_path: Path):
    host = Host(store, tmp_path / "out")
    host.log(1)
    (tmp_path / "out" / host.path.name).write_bytes(b"another")
    host.store()
    mirror = JobMirror(store, "job", UID, tmp_path / "logs")
    for _ in range(2):
        assert mirror.refresh([]) == 1
        assert (tmp_path / "logs" / host.path.name).read_bytes() == b"another"


def test_a_job_that_was_preempted_and_does_steps_again_is_one_curve(store: MemoryStore, tmp_path: Path):
    first = Host(store, tmp_path / "out")
    first.log(*range(10), value=1.0)
    first.store()
    mirror = JobMirror(store, "job", UID, tmp_path / "logs")
    mirror.refresh([])
    second = Host(store, tmp_path / "out", run=2, began=BEGAN + 100)
    second.store()
    mirror.refresh([BEGAN - 3, BEGAN + 95])
    assert [step for step, _ in curve(tmp_path / "logs")] == [*range(10)], "its first step is not known yet"
    second.log(*range(6, 15), value=2.0)
    second.store()
    mirror.refresh([BEGAN - 3, BEGAN + 95])
    expected = [(step, 1.0) for step in range(6)] + [(step, 2.0) for step in range(6, 15)]
    assert curve(tmp_path / "logs") == expected
    fresh = JobMirror(store, "job", UID, tmp_path / "again")
    fresh.refresh([BEGAN - 3, BEGAN + 95])
    assert curve(tmp_path / "again") == expected


def test_two_writers_of_one_attempt_are_no_restart(store: MemoryStore, tmp_path: Path):
    first = Host(store, tmp_path / "out")
    first.log(5, 6, 7)
    second = Host(store, tmp_path / "out", began=BEGAN + 1)
    second.log(0, 1)
    second.store()
    JobMirror(store, "job", UID, tmp_path / "logs").refresh([])
    assert sorted(step for step, _ in curve(tmp_path / "logs")) == [0, 1, 5, 6, 7]


def test_several_hosts_have_a_folder_each(store: MemoryStore, tmp_path: Path):
    for number in range(2):
        host = Host(store, tmp_path / f"out-{number}", host=number)
        host.log(number)
        host.store()
    JobMirror(store, "job", UID, tmp_path / "logs").refresh([])
    assert curve(tmp_path / "logs" / "worker-1") == [(1, 1.0)]


def test_a_damaged_part_is_told_and_leaves_what_was_there(store: MemoryStore, tmp_path: Path):
    host, mirror = Host(store, tmp_path / "out"), JobMirror(store, "job", UID, tmp_path / "logs")
    host.log(1)
    host.store()
    mirror.refresh([])
    host.log(2)
    host.store()
    newest = max(meta.key for meta in store.list(keys.outputs("job", UID, 0)) if "manifest" not in meta.key)
    stored = store.get(newest)
    store.put(newest, b"x" * len(stored.data), generation=stored.meta.generation)
    mirror.refresh([])
    assert "is damaged" in mirror.problem
    assert curve(tmp_path / "logs") == [(1, 1.0)]


@pytest.mark.parametrize("garbage", [b"\xff" * 50, b"\0" * 100, b"\4" + b"\0" * 11 + b"\xff" * 8, b""])
def test_garbage_after_a_restart_is_no_harm_to_the_curve(store: MemoryStore, tmp_path: Path, garbage: bytes):
    host = Host(store, tmp_path / "out")
    host.log(1)
    (host.path.parent / f"events.out.tfevents.{BEGAN + 100}.garbage").write_bytes(garbage)
    host.store()
    mirror = JobMirror(store, "job", UID, tmp_path / "logs")
    assert mirror.refresh([BEGAN - 3, BEGAN + 95]) == 2
    assert curve(tmp_path / "logs") == [(1, 1.0)]
    assert ("is not an event file" in mirror.problem) == garbage.startswith(b"\4")


def test_a_file_where_another_needs_a_folder_is_told(store: MemoryStore, tmp_path: Path):
    host = Host(store, tmp_path / "out")
    host.log(1)
    folder = tmp_path / "out" / host.path.name
    folder.mkdir()
    (folder / "events.out.tfevents.1.x").write_bytes(b"x")
    host.store()
    mirror = JobMirror(store, "job", UID, tmp_path / "logs")
    mirror.refresh([])
    assert "cannot write" in mirror.problem


def test_parts_are_copied_one_by_one(store: MemoryStore, tmp_path: Path):
    host = Host(store, tmp_path / "out")
    host.log(*range(50))
    host.store()
    key = max(meta.key for meta in store.list(keys.outputs("job", UID, 0)) if "manifest" not in meta.key)
    stored = store.get(key)
    store.put(key, b"x" * len(stored.data), generation=stored.meta.generation)
    mirror = JobMirror(store, "job", UID, tmp_path / "logs")
    mirror.refresh([])
    assert f"host 0: {outputs.TENSORBOARD}/{host.path.name}: is damaged" in mirror.problem
    assert len(curve(tmp_path / "logs")) > 30


def test_goodput_is_a_curve_of_its_own(tmp_path: Path):
    runs = (
        Run(held_at=BEGAN, running_since=BEGAN + 10, stopped_at=BEGAN + 50, freed_at=BEGAN + 60),
        Run(held_at=BEGAN + 60, running_since=BEGAN + 70),
    )
    goodput_scalars.write(tmp_path, Life(BEGAN, BEGAN + 100, runs))
    assert curve(tmp_path / "bastion", "bastion/lost_seconds") == [(60, 40.0), (100, 40.0)]
    assert curve(tmp_path / "bastion", "bastion/goodput") == [(60, 0.0), (100, pytest.approx(0.3))]


def test_a_folder_with_copies_of_an_earlier_job_of_the_name_gets_rid_of_them_and_of_nothing_else(
    tmp_path: Path,
) -> None:
    store, into = MemoryStore(), tmp_path / "logs" / "job"
    host = Host(store, tmp_path / "host")
    host.log(1, 2, 3)
    host.store()
    for _ in range(2):
        JobMirror(store, "job", UID, into).refresh([BEGAN])
        assert [step for step, _ in curve(into)] == [1, 2, 3]
    (into / "notes.txt").write_text("mine")
    assert JobMirror(store, "job", "bcdefghijk", into).refresh([]) == 0
    assert not [*into.rglob("*.tfevents.*")]
    assert (into / "notes.txt").exists()


def test_a_forged_manifest_is_left_out_and_the_true_one_shown(store: MemoryStore, tmp_path: Path):
    host = Host(store, tmp_path / "out")
    host.log(*range(5))
    host.store()
    forger = Host(store, tmp_path / "theirs")
    forger.log(*range(5), value=9.0)
    forger.sync.sync_once()
    forged = max(meta.key for meta in store.list(f"{keys.outputs('job', UID, 0)}manifest-"))
    stored = store.get(forged)
    store.put(forged, stored.data.replace(b'"proof":"', b'"proof":"0'), generation=stored.meta.generation)
    mirror = JobMirror(store, "job", UID, tmp_path / "logs", public_keys={f"{UID}-1": KEY.public})
    mirror.refresh([])
    assert curve(tmp_path / "logs") == [(step, 1.0) for step in range(5)]
    assert (mirror.unproved, mirror.problem) == (1, "")
    older = JobMirror(store, "job", UID, tmp_path / "older", public_keys={f"{UID}-1": ""})
    older.refresh([])
    assert (older.unproved, curve(tmp_path / "older")) == (0, [(step, 9.0) for step in range(5)])
