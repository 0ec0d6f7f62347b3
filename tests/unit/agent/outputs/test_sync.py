"""Storing an output folder and bringing it back: real files, a store in memory, a turn at a time."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bastion.agent.backoff import Backoff
from bastion.agent.outputs.restore import restore
from bastion.agent.outputs.store import OutputStore
from bastion.agent.outputs.sync import SETTLE_SECONDS, OutputSync
from bastion.core.bucket import keys, outputs
from bastion.core.bucket.manifest_proofs import ManifestProofs
from bastion.core.bucket.outputs import Manifest
from bastion.core.errors import NotFound, StoreError
from bastion.core.run_keys import RunKey
from bastion.ports import ObjectStore
from bastion.testing.counting_store import CountingStore
from bastion.testing.faulty_store import Fault, FaultyStore
from bastion.testing.memory_store import MemoryStore

UID = "abcdefghij"
FOLDER = keys.outputs("job", UID, 0)
FIRST, SECOND = (b"".join(letter * 1000 for letter in letters) for letters in ((b"a", b"b", b"c"), (b"x", b"y", b"z")))


def run_key(run: int) -> RunKey:
    return RunKey(bytes([run]) * 32)


PROOFS = ManifestProofs(place=FOLDER, public_keys={f"{UID}-{run}": run_key(run).public for run in range(1, 20)})


def sync_of(
    store: ObjectStore, folder: Path, *, run: int = 1, part_bytes: int = 1 << 20, settle_seconds: float = 0.0
) -> OutputSync:
    return OutputSync(
        OutputStore(store, FOLDER, proofs=PROOFS, run_key=run_key(run)),
        folder,
        run=f"{UID}-{run}",
        backoff=Backoff(Random(1), first_seconds=0.01, last_seconds=0.01),
        on_done=lambda: None,
        settle_seconds=settle_seconds,
        part_bytes=part_bytes,
        period_seconds=3600.0,
    )


def restored(store: ObjectStore, into: Path, *, run: int = 2) -> Manifest | None:
    return restore(store, FOLDER, into, run=f"{UID}-{run}", proofs=PROOFS).manifest


def content(folder: Path) -> dict[str, object]:
    """Everything that is in a folder."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_dir():
            found[name] = None
        else:
            status = path.stat()
            found[name] = (path.read_bytes(), status.st_mode & 0o777, status.st_mtime_ns)
    return found


def names(store: MemoryStore) -> list[str]:
    return [meta.key.removeprefix(FOLDER) for meta in store.list(FOLDER)]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def test_what_is_restored_is_what_was_stored_with_modes_times_links_and_empty_folders(
    store: MemoryStore, tmp_path: Path, out: Path
):
    (out / "ckpt" / "7").mkdir(parents=True)
    (out / "empty").mkdir()
    (out / "ckpt" / "7" / "weights").write_bytes(bytes(range(256)) * 40)
    (out / "none").write_bytes(b"")
    (out / "ä\nb %2F").write_text("a name that no key can have")
    (out / ("x" * 200)).write_text("long")
    (out / "run.sh").write_text("true")
    (out / "run.sh").chmod(0o750)
    os.utime(out / "run.sh", ns=(5, 1_234_567_890))
    (out / "latest").symlink_to("ckpt/7")
    assert sync_of(store, out, part_bytes=1000).sync_once()
    manifest = restored(store, tmp_path / "new")
    assert manifest is not None
    assert len(manifest.files["ckpt/7/weights"].parts) == 11
    assert content(tmp_path / "new") == content(out)


def test_only_what_changed_is_stored_again_and_a_quiet_folder_costs_nothing(out: Path):
    memory = MemoryStore()
    store = CountingStore(memory)
    (out / "old").write_text("old")
    (out / "large").write_bytes(b"a" * 1000 + b"b" * 1000)
    sync = sync_of(store, out, part_bytes=1000)
    assert sync.sync_once()
    store.reset()
    assert not sync.sync_once()
    assert store.writes == 0
    with (out / "large").open("ab") as file:
        file.write(b"c" * 10)
    (out / "new").write_text("new")
    assert sync.sync_once()
    # The part that was added, the new file, the manifest.
    assert store.writes == 3
    assert not sync_of(store, out, run=2, part_bytes=1000).sync_once(), "a successor stored it all again"


def test_a_checkpoint_that_is_renamed_when_it_is_whole_is_not_sent_again(out: Path):
    store = CountingStore(MemoryStore())
    (out / "7.tmp").mkdir()
    (out / "7.tmp" / "weights").write_bytes(b"w" * 100)
    sync = sync_of(store, out)
    sync.sync_once()
    (out / "7.tmp").rename(out / "7")
    store.reset()
    assert sync.sync_once()
    assert store.writes == 1


def test_links_that_lead_out_pipes_and_names_that_are_no_text_are_left_out_and_told(
    store: MemoryStore, tmp_path: Path, out: Path
):
    (out / "good").write_text("good")
    (out / "away").symlink_to("/etc/passwd")
    (out / "up").symlink_to("../x")
    os.mkfifo(out / "pipe")
    (out / os.fsdecode(b"bad\xff")).write_text("x")
    sync = sync_of(store, out)
    sync.sync_once()
    assert sorted(sync.left_out) == ["away", "bad?", "pipe", "up"]
    restored(store, tmp_path / "new")
    assert list(content(tmp_path / "new")) == ["good"]


class Meddling(CountingStore):
    """Lets something happen whenever a file's bytes are on their way."""

    def __init__(self, store: ObjectStore, meddle: Callable[[str], None]) -> None:
        super().__init__(store)
        self.meddle = meddle

    def put(self, key: str, data: bytes, *, generation: int):  # type: ignore[no-untyped-def]
        self.meddle(key)
        return super().put(key, data, generation=generation)


def test_a_file_that_changes_while_it_is_read_is_read_again_as_a_whole(tmp_path: Path, out: Path):
    memory = MemoryStore()
    (out / "state").write_bytes(FIRST)

    def change_once(key: str) -> None:
        if key.endswith("/000001") and (out / "state").read_bytes() == FIRST:
            (out / "state").write_bytes(SECOND)

    assert sync_of(Meddling(memory, change_once), out, part_bytes=1000, settle_seconds=SETTLE_SECONDS).sync_once()
    restored(memory, tmp_path / "new")
    assert (tmp_path / "new" / "state").read_bytes() == SECOND


def test_a_change_that_keeps_size_and_time_is_seen_all_the_same(tmp_path: Path, out: Path):
    memory = MemoryStore()
    (out / "state").write_bytes(FIRST)
    os.utime(out / "state", ns=(7, 7))

    def change_once(key: str) -> None:
        if key.endswith("/000001") and (out / "state").read_bytes() == FIRST:
            (out / "state").write_bytes(SECOND)
            os.utime(out / "state", ns=(7, 7))

    assert sync_of(Meddling(memory, change_once), out, part_bytes=1000, settle_seconds=SETTLE_SECONDS).sync_once()
    restored(memory, tmp_path / "new")
    assert (tmp_path / "new" / "state").read_bytes() == SECOND


def test_a_file_that_never_rests_stays_as_it_was_before_and_holds_nothing_up(tmp_path: Path, out: Path):
    memory = MemoryStore()
    moving = False

    def append(_key: str) -> None:
        if moving:
            with (out / "log").open("ab") as file:
                file.write(b"more")
            (out / "partial").write_bytes(os.urandom(10))

    (out / "log").write_text("whole")
    sync = sync_of(Meddling(memory, append), out)
    sync.sync_once()
    moving = True
    (out / "log").write_text("another")
    (out / "partial").write_text("x")
    (out / "result").write_text("42")
    sync.sync_once()
    assert set(sync.left_out) == {"log", "partial"}
    restored(memory, tmp_path / "new")
    assert (tmp_path / "new" / "log").read_text() == "whole"
    assert (tmp_path / "new" / "result").read_text() == "42"
    assert not (tmp_path / "new" / "partial").exists()
    moving = False
    assert sync.sync_once()
    assert sync.left_out == {}


def test_an_event_file_that_never_rests_is_stored_as_far_as_it_was(tmp_path: Path, out: Path):
    memory = MemoryStore()
    events = out / "events.out.tfevents.1700000000.host.1.0"

    def append(_key: str) -> None:
        with events.open("ab") as file:
            file.write(b"more")

    events.write_bytes(b"begun ")
    sync = sync_of(Meddling(memory, append), out, part_bytes=8, settle_seconds=SETTLE_SECONDS)
    for _ in range(2):
        assert sync.sync_once()
        assert sync.left_out == {}
        restored(memory, tmp_path / "new")
        stored = (tmp_path / "new" / events.name).read_bytes()
        assert stored.startswith(b"begun ")
        assert events.read_bytes().startswith(stored)
    assert len(stored) > len(b"begun ")


def test_two_manifests_stay_and_the_newest_of_an_earlier_run_and_what_they_name(
    store: MemoryStore, tmp_path: Path, out: Path
):
    for run in (1, 2):
        sync = sync_of(store, out, run=run)
        for number in range(5):
            (out / "state").write_text(f"{run}." + "i" * number)
            sync.sync_once()
    seqs = [seq for name in names(store) if (seq := outputs.seq_of_manifest(name)) is not None]
    assert len(seqs) == 3
    assert len(names(store)) == 6
    # A host of the second run that comes up late begins like its siblings.
    restored(store, tmp_path / "late", run=2)
    assert (tmp_path / "late" / "state").read_text() == "1.iiii"
    restored(store, tmp_path / "next", run=3)
    assert (tmp_path / "next" / "state").read_text() == "2.iiii"


def test_outputs_that_are_not_whole_are_passed_over_for_older_ones_that_are(
    store: MemoryStore, tmp_path: Path, out: Path
):
    sync = sync_of(store, out)
    for text in ("first", "second"):
        (out / "state").write_text(text)
        sync.sync_once()
    newest = max(name for name in names(store) if "/files/" in name)
    meta = store.head(FOLDER + newest)
    assert meta is not None
    store.delete(meta.key, generation=meta.generation)
    result = restore(store, FOLDER, tmp_path / "new", run=f"{UID}-2", proofs=PROOFS)
    assert (tmp_path / "new" / "state").read_text() == "first"
    assert len(result.passed_over) == 1
    (out / "state").write_text("second")
    sync_of(store, out, run=2).sync_once()
    restored(store, tmp_path / "again", run=3)
    assert (tmp_path / "again" / "state").read_text() == "second", "a lost object was taken for stored"


@pytest.mark.parametrize("name", ["manifest-9999999999", "9999999999/files/x"])
def test_after_a_number_that_no_host_reaches_outputs_are_stored_and_restored_as_before(
    store: MemoryStore, tmp_path: Path, out: Path, name: str
):
    store.put(FOLDER + name, b"theirs", generation=0)
    (out / "good").write_text("good")
    sync_of(store, out).sync_once()
    restored(store, tmp_path / "new")
    assert list(content(tmp_path / "new")) == ["good"]


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {"../x": {"mode": 420, "mtime_ns": 0, "parts": []}}},
        {"files": {"/x": {"mode": 420, "mtime_ns": 0, "parts": []}}},
        {"files": {"a/x": {"mode": 420, "mtime_ns": 0, "parts": []}}},
        {"files": {"x": {"mode": 0o4755, "mtime_ns": 0, "parts": []}}},
        {"links": {"x": "/etc"}},
        {"links": {"x": ".."}},
        {"folders": ["a"], "links": {"a": "b"}},
        {"files": {"x": {"mode": 420, "mtime_ns": 0, "parts": [{"object": "../y", "size": 0, "sha256": "0" * 64}]}}},
    ],
    ids=["climbs", "absolute", "no-folder", "setuid", "link-absolute", "link-climbs", "twice", "foreign-object"],
)
def test_a_manifest_that_leads_out_of_its_folder_is_passed_over(
    store: MemoryStore, tmp_path: Path, changes: dict[str, object]
):
    document = {"format": 1, "run": f"{UID}-1", "seq": 1} | changes
    store.put(FOLDER + outputs.manifest_name(1), json.dumps(document).encode(), generation=0)
    result = restore(store, FOLDER, tmp_path / "new", run=f"{UID}-2", proofs=PROOFS)
    assert result.manifest is None
    assert len(result.passed_over) == 1
    assert not (tmp_path / "new").exists()


def test_what_the_code_brought_along_gives_way_to_what_was_stored(store: MemoryStore, tmp_path: Path, out: Path):
    (out / "a").mkdir()
    (out / "a" / "x").write_text("stored")
    (out / "b").write_text("stored")
    sync_of(store, out).sync_once()
    new = tmp_path / "new"
    (new / "b").mkdir(parents=True)
    (new / "b" / "inside").write_text("x")
    (new / "a").symlink_to(tmp_path)
    (new / "mine").write_text("stays")
    restored(store, new)
    assert {name for name in content(new) if (new / name).is_file()} == {"a/x", "b", "mine"}
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER], ids=["lost-request", "lost-reply"])
def test_finish_stores_the_last_state_through_failures_and_an_abandoned_one_ends(
    tmp_path: Path, out: Path, fault: Fault
):
    memory = MemoryStore()
    store = FaultyStore(memory)
    sync = sync_of(store, out)
    sync.start()
    (out / "state").write_text("last")
    store.fail_next("put", fault=fault, times=3)
    sync.finish()
    ended = threading.Event()
    while sync.is_alive and not ended.wait(0.01):
        pass
    assert sync.done
    restored(memory, tmp_path / "new")
    assert (tmp_path / "new" / "state").read_text() == "last"
    other = sync_of(memory, out)
    other.start()
    other.abandon()
    while other.is_alive and not ended.wait(0.01):
        pass
    assert not other.done


class Dead(Exception):
    """The host is gone."""


class Mortal(CountingStore):
    """Ends the world at its n-th change, before it or right after it."""

    def __init__(self, store: ObjectStore, *, left: int, after: bool) -> None:
        super().__init__(store)
        self.left = left
        self.after = after

    def _dies(self) -> bool:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Dead
        return self.left == 0

    def put(self, key: str, data: bytes, *, generation: int):  # type: ignore[no-untyped-def]
        dies = self._dies()
        meta = super().put(key, data, generation=generation)
        if dies:
            raise Dead
        return meta

    def delete(self, key: str, *, generation: int) -> None:
        dies = self._dies()
        super().delete(key, generation=generation)
        if dies:
            raise Dead


CHANGES = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c/d"]), st.one_of(st.none(), st.binary(max_size=25))), min_size=1, max_size=4
)


@settings(max_examples=60, deadline=None)
@given(
    lives=st.lists(st.tuples(st.lists(CHANGES, min_size=1, max_size=4), st.integers(1, 14), st.booleans()), max_size=4)
)
def test_whenever_a_host_dies_the_next_one_begins_with_a_folder_that_existed(
    tmp_path_factory: pytest.TempPathFactory, lives: list[tuple[list[list[tuple[str, bytes | None]]], int, bool]]
):
    memory = MemoryStore()
    base = tmp_path_factory.mktemp("lives")
    ticks = 0
    for number, (rounds, left, after) in enumerate(lives, start=1):
        folder = base / str(number)
        restored(memory, folder, run=number)
        folder.mkdir(exist_ok=True)
        begun = content(folder)
        committed, possible = begun, [begun]
        sync = sync_of(Mortal(memory, left=left, after=after), folder, run=number, part_bytes=10)
        try:
            for changes in rounds:
                for path, data in changes:
                    target = folder / path
                    if data is None:
                        target.unlink(missing_ok=True)
                    else:
                        target.parent.mkdir(exist_ok=True)
                        target.write_bytes(data)
                        # Two changes within a tick of the clock are told apart by waiting; here, by this.
                        ticks += 1
                        os.utime(target, ns=(ticks, ticks))
                possible = [committed, content(folder)]
                sync.sync_once()
                committed, possible = content(folder), [content(folder)]
        except Dead:
            pass
        after_life = base / f"{number}.seen"
        restored(memory, after_life, run=number + 1)
        found = content(after_life) if after_life.exists() else {}
        assert found in possible, "neither the state before nor the one after"


def test_a_bucket_that_does_not_answer_is_told_to_whoever_restores(tmp_path: Path):
    store = FaultyStore(MemoryStore())
    store.fail_next("list")
    with pytest.raises(StoreError):
        restore(store, FOLDER, tmp_path / "new", run=f"{UID}-2", proofs=PROOFS)
    with pytest.raises(NotFound):
        store.get(FOLDER + outputs.manifest_name(1))
