"""A job's inputs on its hosts: real commands, folders as buckets."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from bastion.adapters.folder.store import DirectoryStore
from bastion.adapters.forwarding_store import ForwardingStore
from bastion.agent.inputs import fetch, room
from bastion.core import limits
from bastion.core.bucket import host_errors, keys
from bastion.core.bucket.keys import Run
from bastion.core.bucket.pinned import read_listing
from bastion.core.bucket.protocol import HostPhase, InputOrder
from bastion.core.errors import EXIT_NO_CODE, AccessDenied, StoreError, StoreUnavailable
from bastion.folder_format import listing
from bastion.ports import ObjectStore, StoredObject
from tests.support.waiting import until
from tests.support.worker_stage import RUN, Stage


class Data:
    """A folder with an input."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tokens"
        (self.folder / "deep").mkdir(parents=True)
        (self.folder / "a").write_bytes(b"hello\n")
        (self.folder / "deep" / "b").write_bytes(b"x" * 5000)

    def orders(self, folder: str = "data") -> list[InputOrder]:
        return [InputOrder(url=str(self.folder), dir=folder)]


@pytest.fixture(name="data")
def _data(tmp_path: Path) -> Data:
    return Data(tmp_path)


def _watched(stage: Stage, monkeypatch: pytest.MonkeyPatch, at_read: Callable[[str], None]) -> list[str]:
    """The keys that are read of inputs; `at_read` is called before each."""
    read: list[str] = []

    def of(inner: Callable[..., StoredObject]) -> Callable[..., StoredObject]:
        def get(self: DirectoryStore, key: str, **arguments: object) -> StoredObject:
            at_read(key)
            read.append(key)
            return inner(self, key, **arguments)

        return get

    for name in ("get", "get_range"):
        monkeypatch.setattr(DirectoryStore, name, of(getattr(DirectoryStore, name)))
    return read


def test_the_command_finds_its_input_and_the_setup_too(stage: Stage, data: Data) -> None:
    stage.run("cat data/a; wc -c < data/deep/b", inputs=data.orders(), setup="ls data", host=stage.host(on_vm=True))
    report = stage.final()
    assert (report.phase, report.exit_code) == (HostPhase.EXITED, 0)
    log = stage.log()
    assert log[0].startswith(f"stderr F bastion: input {data.folder}: 2 files, 4.9 KiB (4.9 KiB fetched in 0 s)")
    assert log[-2:] == ["stdout F hello", "stdout F 5000"]
    folder = keys.pinned_input("job", Run.parse(RUN) or Run("", 1), 0)
    (key,) = (meta.key for meta in stage.memory.list(folder + "listing"))
    listing = read_listing(stage.memory.get(key).data)
    assert (listing.objects, listing.size, listing.parts) == (2, 5006, 1)


def test_all_hosts_fetch_what_host_0_has_listed(stage: Stage, data: Data) -> None:
    stage.order("ls data", inputs=data.orders())
    other = stage.host(worker=1, hosts=2, on_vm=True)
    first = stage.host(worker=0, hosts=2, on_vm=True)
    stage.start(other)
    stage.start(first)
    assert [stage.final(worker).exit_code for worker in (0, 1)] == [0, 0]
    assert stage.log(0)[-2:] == stage.log(1)[-2:] == ["stdout F a", "stdout F deep"]
    assert sum("/listing-" in key for key in stage.counting.written) == 1


def test_inputs_are_fetched_once_for_all_tries(stage: Stage, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    read = _watched(stage, monkeypatch, lambda _key: None)
    stage.run("cat data/a; exit 3", inputs=data.orders(), most=2, host=stage.host(on_vm=True))
    until(lambda: stage.report() is not None and stage.report().phase is HostPhase.EXITED)  # type: ignore[union-attr]
    (data.folder / "a").write_bytes(b"changed\n")
    stage.order("cat data/a", inputs=data.orders(), most=2, restart="try 1 failed", number=2)
    until(lambda: stage.waits_for(2))
    stage.order("cat data/a", inputs=data.orders(), most=2, number=2)
    assert stage.final(number=2).exit_code == 0
    assert stage.log().count("stdout F hello") == 2
    assert sorted(read) == ["a", "deep/b"]


def test_a_cache_serves_all_attempts_and_jobs_of_a_host(
    stage: Stage, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = _watched(stage, monkeypatch, lambda _key: None)
    for attempt in (1, 2, 3):
        run = f"abcdefghij-{attempt}"
        host = stage.host(on_vm=True, run=run, input_cache=str(tmp_path / "cache"), input_cache_bytes=1 << 20)
        stage.run("cat data/a; echo mine > data/a", inputs=data.orders(), run=run, host=host)
        assert stage.final(run=run).exit_code == 0
        assert "stdout F hello" in stage.log(run=run)
    assert sorted(read) == ["a", "deep/b"]
    assert "fetched in" in stage.log(run="abcdefghij-1")[0]
    assert "(0 B fetched in" in stage.log(run="abcdefghij-2")[0]


def test_a_cache_that_cannot_be_used_is_told_and_done_without(stage: Stage, data: Data, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    host = stage.host(on_vm=True, input_cache=str(tmp_path / "file" / "cache"), input_cache_bytes=1 << 20)
    stage.run("cat data/a", inputs=data.orders(), host=host)
    assert stage.final().exit_code == 0
    assert "the input cache cannot be used, fetching without it" in stage.log()[0]


def _fails(stage: Stage, orders: list[InputOrder], error: str, *said: str, **order: object) -> None:
    stage.run("echo started", inputs=orders, host=stage.host(on_vm=True), **order)
    report = stage.final()
    assert (report.phase, report.error, report.exit_code) == (HostPhase.FAILED, error, EXIT_NO_CODE)
    for text in said:
        assert text in report.message
    assert not any("started" in line for line in stage.log())


def test_an_empty_input_fails_the_job(stage: Stage, data: Data) -> None:
    shutil.rmtree(data.folder)
    data.folder.mkdir()
    _fails(stage, data.orders(), host_errors.INPUT_MISSING, "is empty", "check the URL")


def test_a_missing_folder_fails_the_job(stage: Stage, data: Data) -> None:
    shutil.rmtree(data.folder)
    _fails(stage, data.orders(), host_errors.INPUT_MISSING, "cannot be read: there is no folder")


def test_missing_credentials_fail_the_job(stage: Stage, data: Data) -> None:
    host = stage.host(on_vm=True)

    def refuse(_url: str, *, create: bool = False) -> tuple[ObjectStore, str]:
        raise AccessDenied("there are no credentials for Cloud Storage on this machine; attach a service account")

    object.__setattr__(host._parts, "open_bucket", refuse)
    stage.order("echo started", inputs=data.orders())
    stage.start(host)
    report = stage.final()
    assert (report.error, report.exit_code) == (host_errors.INPUT_MISSING, EXIT_NO_CODE)
    assert "cannot be read: there are no credentials" in report.message


def test_an_input_does_not_cover_files_of_the_jobs_code(stage: Stage, data: Data) -> None:
    work = stage.state_dir / f"{RUN}.0" / "job" / "work"
    (work / "data").mkdir(parents=True)
    (work / "data" / "notes").write_text("mine")
    _fails(stage, data.orders(), host_errors.INPUT_INVALID, "the job's code has files there, such as data/notes")
    assert (work / "data" / "notes").read_text() == "mine"


def test_an_empty_folder_of_the_code_takes_an_input(stage: Stage, data: Data) -> None:
    (stage.state_dir / f"{RUN}.0" / "job" / "work" / "deep" / "data").mkdir(parents=True)
    stage.run("cat deep/data/a", inputs=data.orders("deep/data"), host=stage.host(on_vm=True))
    assert stage.final().exit_code == 0


def test_an_input_that_does_not_fit_is_refused_before_it_is_fetched(
    stage: Stage, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = _watched(stage, monkeypatch, lambda _key: None)
    monkeypatch.setattr(
        room.Room, "of", staticmethod(lambda folder: room.Room(folder.parent.stat().st_dev, 10_000, 10))
    )
    _fails(
        stage,
        data.orders(),
        host_errors.DISK_LIMIT,
        "the job's inputs need 12.0 KiB of disk, and 9.8 KiB is free there; nothing was fetched",
    )
    assert read == []


def test_too_many_files_for_the_disk_are_refused_before(
    stage: Stage, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        room.Room, "of", staticmethod(lambda folder: room.Room(folder.parent.stat().st_dev, 1 << 40, 1))
    )
    _fails(stage, data.orders(), host_errors.DISK_LIMIT, "only 1 of 2 files fit")


def test_a_changed_input_fails_the_job(stage: Stage, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(_key: str) -> None:
        (data.folder / "deep" / "b").write_bytes(b"y" * 5000)

    _watched(stage, monkeypatch, change)
    _fails(stage, data.orders(), host_errors.INPUT_CHANGED, "deep/b was replaced", "launch the job again")


def test_a_stop_ends_the_fetch(stage: Stage, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = threading.Event()
    release = threading.Event()

    def wait(_key: str) -> None:
        reading.set()
        release.wait(10)

    _watched(stage, monkeypatch, wait)
    stage.run("echo started", inputs=data.orders(), host=stage.host(on_vm=True))
    assert reading.wait(10)
    stage.order(stop="cancelled", inputs=data.orders())
    assert stage.final().phase is HostPhase.STOPPED
    release.set()


def test_progress_is_in_the_reports(stage: Stage, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(fetch, "AT_ONCE", 1)

    def wait(key: str) -> None:
        if key == "deep/b":
            release.wait(10)

    _watched(stage, monkeypatch, wait)
    stage.run("true", inputs=data.orders(), host=stage.host(on_vm=True))

    def told() -> bool:
        report = stage.report()
        return report is not None and (report.phase, report.fetched_bytes, report.input_bytes) == (
            HostPhase.PREPARING,
            6,
            5006,
        )

    until(told)
    release.set()
    report = stage.final()
    assert (report.exit_code, report.input_bytes) == (0, None)


def test_outputs_go_to_the_place_that_the_job_names_and_come_back_from_there(stage: Stage, tmp_path: Path) -> None:
    mine = tmp_path / "mine" / "runs"
    for attempt, command in enumerate(("echo 41 > out/step", "cat out/step; echo 42 > out/step", "cat out/step"), 1):
        run = f"abcdefghij-{attempt}"
        host = stage.host(on_vm=True, run=run, state_dir=stage.state_dir / run)
        stage.run(command, output_dir="out", output_to=str(mine), run=run, host=host)
        assert stage.final(run=run).exit_code == 0
    assert stage.log(run="abcdefghij-2")[-1] == "stdout F 41"
    assert stage.log(run="abcdefghij-3")[-1] == "stdout F 42"
    kept = sorted(path.name for path in (mine / "outputs" / "job" / "abcdefghij" / "worker-0").iterdir())
    assert [name for name in kept if name.startswith("manifest-")]
    assert "probe" not in kept
    assert not any(key.startswith("outputs/") for key in stage.counting.written)


def test_a_place_without_conditional_deletions_keeps_outputs(stage: Stage, tmp_path: Path) -> None:
    class NoDeletions(DirectoryStore):
        def delete(self, key: str, *, generation: int) -> NoReturn:
            raise StoreError(f"deleting s3://mine/{key}: the service does not know a part of the request")

    mine = NoDeletions(tmp_path / "mine")
    host = stage.host(on_vm=True)
    object.__setattr__(host._parts, "open_bucket", lambda _url, **_: (mine, "runs"))
    stage.run("echo 42 > out/step", output_dir="out", output_to="s3://mine/runs", host=host)
    assert stage.final().exit_code == 0
    assert [meta for meta in mine.list("runs/outputs/") if "manifest-" in meta.key]


def test_restored_outputs_take_no_place_of_an_input(stage: Stage, data: Data) -> None:
    """They are put together beside the output folder first."""
    for attempt in (1, 2):
        run = f"abcdefghij-{attempt}"
        host = stage.host(on_vm=True, run=run, state_dir=stage.state_dir / run)
        command = "cat out.new/a && touch out/here && ls -A"
        stage.run(command, inputs=data.orders("out.new"), output_dir="out", run=run, host=host)
        assert stage.final(run=run).exit_code == 0
    assert stage.log(run="abcdefghij-2")[-3:] == ["stdout F hello", "stdout F out", "stdout F out.new"]


def test_a_place_that_refuses_outputs_is_told_before_the_command(stage: Stage, tmp_path: Path) -> None:
    host = stage.host(on_vm=True)

    class Closed(DirectoryStore):
        def put(self, key: str, data: bytes, *, generation: int) -> NoReturn:
            raise AccessDenied("writing gs://mine/x: worker@y.z lacks the permission storage.objects.create")

    closed = Closed(tmp_path / "mine")
    object.__setattr__(host._parts, "open_bucket", lambda _url, **_: (closed, "runs"))
    stage.order("echo started", output_dir="out", output_to="gs://mine/runs")
    stage.start(host)
    report = stage.final()
    assert (report.phase, report.error, report.exit_code) == (HostPhase.FAILED, "OutputRefused", EXIT_NO_CODE)
    assert "at --output_to=gs://mine/runs: writing gs://mine/x: worker@y.z lacks the permission" in report.message
    assert not any("started" in line for line in stage.log() if "was not started" not in line)


@pytest.mark.parametrize("asked", ["input", "output"])
def test_a_bucket_that_does_not_answer_is_told_at_once_and_waited_for(
    stage: Stage, data: Data, tmp_path: Path, asked: str
) -> None:
    answers = threading.Event()
    host = stage.host(on_vm=True)

    def open_bucket(_url: str, *, create: bool = False) -> tuple[ObjectStore, str]:
        if not answers.is_set():
            raise StoreUnavailable("s3://mine/x could not be listed: connection refused; try again")
        return DirectoryStore(tmp_path / "mine" if create else data.folder), ""

    object.__setattr__(host._parts, "open_bucket", open_bucket)
    wanted = {"inputs": data.orders()} if asked == "input" else {"output_dir": "out", "output_to": "s3://mine/x"}
    stage.order("echo started", **wanted)  # type: ignore[arg-type]
    stage.start(host)

    def told() -> bool:
        report = stage.report()
        return report is not None and "waiting for an answer" in report.message

    until(told)
    answers.set()
    report = stage.final()
    assert (report.exit_code, report.message) == (0, "")
    assert [line for line in stage.log() if "waiting for an answer" in line and "connection refused" in line]


def test_credentials_that_expire_in_the_middle_of_a_fetch_are_told_and_waited_for(
    stage: Stage, data: Data, tmp_path: Path
) -> None:
    renewed = threading.Event()

    class Expiring(ForwardingStore):
        def get(self, key: str, *, start: int = 0, max_bytes: int = limits.READ_MAX_BYTES) -> StoredObject:
            if key == "tokens/deep/b" and not renewed.is_set():
                until(lambda: any(tmp_path.rglob("inputs/0/a")))  # the first object was read
                raise AccessDenied("reading s3://mine: the credentials have expired (ExpiredToken)")
            return super().get(key, start=start, max_bytes=max_bytes)

    store = Expiring(DirectoryStore(data.folder.parent))
    host = stage.host(on_vm=True)
    object.__setattr__(host._parts, "open_bucket", lambda _url: (store, "tokens"))
    stage.order("cat data/a; wc -c < data/deep/b", inputs=[InputOrder(url="s3://mine/tokens", dir="data")])
    stage.start(host)

    def told() -> bool:
        report = stage.report()
        return report is not None and "the credentials have expired (ExpiredToken)" in report.message

    until(told)
    renewed.set()
    assert stage.final().exit_code == 0
    log = stage.log()
    assert [line for line in log if "waiting for an answer" in line and "ExpiredToken" in line]
    assert [line.split()[-1] for line in log[-2:]] == ["hello", "5000"]


def test_a_folder_that_may_not_be_listed_is_not_left_out(
    stage: Stage, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = listing._open_for_reading

    def closed(root: str, base: str) -> int | None:
        if base == "deep/":
            raise PermissionError(errno.EACCES, "Permission denied")  # tests may run as root
        return whole(root, base)

    monkeypatch.setattr(listing, "_open_for_reading", closed)
    said = f"listing {data.folder}/deep/ failed: Permission denied; it needs read and search permission"
    _fails(stage, data.orders(), host_errors.INPUT_MISSING, said)


@pytest.mark.parametrize("name", [b"two\nlines", b"latin-\xe9"])
def test_a_file_whose_name_no_object_can_have_is_not_left_out(stage: Stage, data: Data, name: bytes) -> None:
    (data.folder / "deep" / os.fsdecode(name)).write_bytes(b"x")
    _fails(stage, data.orders(), host_errors.INPUT_MISSING, "which no object can have; rename it")
