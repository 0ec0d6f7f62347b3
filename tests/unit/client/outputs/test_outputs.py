"""What hosts store, found and fetched: resumed, and with manifests that lie or attack the folder."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bastion.client.jobs.job_info import JobInfo, Stage
from bastion.client.jobs.results import Result
from bastion.client.outputs import Outputs, fetch, find_outputs
from bastion.client.outputs import fetch as fetching
from bastion.client.outputs.destination import Destination
from bastion.client.outputs.plan import leads_out
from bastion.core.bucket import keys, outputs
from bastion.core.bucket.manifest_proofs import ManifestProofs
from bastion.core.bucket.outputs import Manifest, Part, StoredFile
from bastion.core.errors import Refused
from bastion.core.run_keys import RunKey
from bastion.testing.counting_store import CountingStore
from bastion.testing.memory_store import MemoryStore

UID = "abcdefghij"
KEY, OTHER = RunKey(bytes(32)), RunKey(bytes([1] * 32))
MTIME = 1_700_000_000_000_000_000


def info() -> JobInfo:
    result = Result.model_validate(
        {"uid": UID, "attempts": [{"number": number, "public_key": KEY.public} for number in (1, 2)]}
    )
    return JobInfo(name="job", uid=UID, stage=Stage.COMPLETED, result=result)


class Hosts:
    """Writes what hosts store."""

    def __init__(self) -> None:
        self.store = MemoryStore()

    def part(self, data: bytes, name: str, *, host: int = 0) -> Part:
        key = keys.outputs("job", UID, host) + name
        if self.store.head(key) is None:
            self.store.put(key, data, generation=0)
        return Part(object=name, size=len(data), sha256=hashlib.sha256(data).hexdigest())

    def file(self, *pieces: bytes, seq: int = 1, name: str = "f", host: int = 0, mode: int = 0o644) -> StoredFile:
        parts = [
            self.part(data, f"{seq:010d}/parts/{name}/{number:06d}", host=host) for number, data in enumerate(pieces)
        ]
        return StoredFile(mode=mode, mtime_ns=MTIME, parts=tuple(parts))

    def manifest(
        self, *, host: int = 0, seq: int = 1, attempt: int = 1, key: RunKey = KEY, **fields: object
    ) -> Manifest:
        place = keys.outputs("job", UID, host)
        manifest = Manifest.model_validate({"run": f"{UID}-{attempt}", "seq": seq, **fields})
        data = ManifestProofs(place=place).to_bytes(manifest, key)
        self.store.put(place + outputs.manifest_name(seq), data, generation=0)
        return manifest

    def found(self, **how: object) -> Outputs:
        return find_outputs(self.store, info(), connections=1, **how)  # type: ignore[arg-type]


@pytest.fixture
def hosts() -> Hosts:
    return Hosts()


def tree(folder: Path) -> dict[str, object]:
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in sorted(folder.rglob("*"))
        if ".bastion-outputs" not in path.parts
    }


def test_parts_modes_links_and_empty_files_and_folders_come_back(hosts: Hosts, tmp_path: Path) -> None:
    hosts.manifest(
        folders=("bin", "empty"),
        files={
            "bin/run": hosts.file(b"#!", b"/bin/sh", mode=0o755, name="run"),
            "none": hosts.file(b"", name="none"),
            "no-parts": StoredFile(mode=0o600, mtime_ns=MTIME),
        },
        links={"latest": "bin/run"},
    )
    done = fetch(hosts.store, hosts.found(), tmp_path / "to")
    assert done.complete
    assert tree(tmp_path / "to") == {
        "bin": None, "bin/run": b"#!/bin/sh", "empty": None, "latest": "bin/run", "no-parts": b"", "none": b"",
    }  # fmt: skip
    assert (tmp_path / "to/bin/run").stat().st_mode & 0o111
    assert (tmp_path / "to/no-parts").stat().st_mode & 0o777 == 0o600
    assert abs((tmp_path / "to/bin/run").stat().st_mtime_ns - MTIME) < 1_000_000_000


def test_several_hosts_get_folders_of_their_own_also_if_one_is_chosen(hosts: Hosts, tmp_path: Path) -> None:
    for host in (0, 1):
        hosts.manifest(host=host, files={"f": hosts.file(b"%d" % host, host=host)})
    fetch(hosts.store, hosts.found(worker=1), tmp_path)
    assert tree(tmp_path) == {"worker-1": None, "worker-1/f": b"1"}
    fetch(hosts.store, hosts.found(), tmp_path)
    assert (tmp_path / "worker-0/f").read_bytes() == b"0"


def test_the_newest_complete_proved_manifest_counts(hosts: Hosts) -> None:
    hosts.manifest(seq=1, files={"f": hosts.file(b"old")})
    hosts.manifest(seq=2, attempt=2, files={"f": hosts.file(b"new", seq=2)})
    hosts.manifest(seq=3, files={"f": StoredFile(mode=0o644, mtime_ns=1, parts=(missing(),))})
    hosts.manifest(seq=4, key=OTHER, files={"f": hosts.file(b"evil", seq=4)})
    found = hosts.found()
    assert [(file.size, file.attempt, file.proved) for file in found.files] == [(3, 2, True)]
    assert found.left_out == 1
    assert "manifest-0000000003" in found.problems[0]
    assert [file.proved for file in hosts.found(unproved=True).files] == [False]
    assert [file.attempt for file in hosts.found(attempt=1).files] == [1]


def missing() -> Part:
    return Part(object="0000000003/files/f", size=3, sha256="0" * 64)


def test_a_second_fetch_gets_only_what_is_missing_or_differs(hosts: Hosts, tmp_path: Path) -> None:
    hosts.manifest(files={name: hosts.file(name.encode(), name=name) for name in ("a", "b", "c")})
    assert fetch(hosts.store, hosts.found(), tmp_path).files == 3
    (tmp_path / "b").unlink()
    counted = CountingStore(hosts.store)
    done = fetch(counted, hosts.found(), tmp_path)
    assert (done.files, done.present, len(counted.read)) == (1, 2, 1)
    hosts.manifest(seq=2, files={"a": hosts.file(b"newer", seq=2, name="a")})
    fetch(hosts.store, hosts.found(), tmp_path)
    assert (tmp_path / "a").read_bytes() == b"newer", "the same job wrote it, so it may be replaced"


def test_a_fetch_that_was_interrupted_goes_on_with_the_missing_parts(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = [bytes([number]) * 100 for number in range(5)]
    hosts.manifest(files={"f": hosts.file(*pieces)})
    reads: list[str] = []
    plain = hosts.store.get_range

    def third_is_interrupted(key: str, *, start: int, size: int) -> object:
        reads.append(key)
        if len(reads) == 3:
            raise KeyboardInterrupt
        return plain(key, start=start, size=size)

    monkeypatch.setattr(hosts.store, "get_range", third_is_interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(hosts.store, hosts.found(), tmp_path, connections=1)
    assert tree(tmp_path) == {}, "no file has its name before it is whole"
    done = fetch(hosts.store, hosts.found(), tmp_path, connections=1)
    assert (done.size, len(reads)) == (300, 6)
    assert tree(tmp_path) == {"f": b"".join(pieces)}


@pytest.mark.parametrize("change", ["another's", "edited"])
def test_files_that_the_job_did_not_write_stay_unless_forced(hosts: Hosts, tmp_path: Path, change: str) -> None:
    hosts.manifest(files={"a": hosts.file(b"1", name="a"), "b": hosts.file(b"2", name="b")})
    if change == "edited":
        fetch(hosts.store, hosts.found(), tmp_path)
        (tmp_path / "b").unlink()
    (tmp_path / "a").write_bytes(b"mine")
    with pytest.raises(Refused, match="--force"):
        fetch(hosts.store, hosts.found(), tmp_path)
    assert tree(tmp_path) == {"a": b"mine"}
    assert fetch(hosts.store, hosts.found(), tmp_path, force=True).complete
    assert tree(tmp_path) == {"a": b"1", "b": b"2"}


def test_a_damaged_part_is_named_and_the_rest_is_fetched(hosts: Hosts, tmp_path: Path) -> None:
    good, bad = hosts.file(b"good", name="good"), hosts.file(b"bad!", name="bad")
    hosts.manifest(files={"good": good, "bad": bad})
    key = keys.outputs("job", UID, 0) + bad.parts[0].object
    meta = hosts.store.head(key)
    assert meta is not None
    hosts.store.put(key, b"evil", generation=meta.generation)
    done = fetch(hosts.store, hosts.found(), tmp_path)
    assert list(done.failures) == ["bad"]
    assert "SHA-256" in done.failures["bad"]
    assert tree(tmp_path) == {"good": b"good"}


@pytest.mark.parametrize(
    "fields",
    [
        {"files": {"../out": {"mode": 0o644, "mtime_ns": 1}}},
        {"files": {"/tmp/out": {"mode": 0o644, "mtime_ns": 1}}},
        {"files": {"f": {"mode": 0o4755, "mtime_ns": 1}}},
        {"links": {"l": "../out"}},
        {"links": {"l": "/etc/passwd"}},
        {"links": {"l": "."}, "files": {"l/out": {"mode": 0o644, "mtime_ns": 1}}},
    ],
)
def test_a_manifest_that_leads_out_counts_for_nothing_even_if_no_proof_is_asked_for(
    hosts: Hosts, fields: dict[str, object]
) -> None:
    place = keys.outputs("job", UID, 0)
    document = {"format": 1, "run": f"{UID}-1", "seq": 1, "folders": [], "files": {}, "links": {}, **fields}
    hosts.store.put(place + outputs.manifest_name(1), json.dumps(document).encode(), generation=0)
    found = hosts.found(unproved=True)
    assert (found.files, found.left_out) == ((), 1)


def test_a_link_that_leads_out_through_another_is_not_made(hosts: Hosts, tmp_path: Path) -> None:
    hosts.manifest(folders=("d",), links={"d/up": "..", "out": "d/up/..", "loop": "loop"})
    done = fetch(hosts.store, hosts.found(), tmp_path / "to")
    assert sorted(done.failures) == ["loop", "out"]
    assert tree(tmp_path / "to") == {"d": None, "d/up": ".."}
    assert leads_out("out", {"d/up": "..", "out": "d/up/.."})
    assert not leads_out("d/up", {"d/up": ".."})


def test_a_link_in_the_way_is_not_followed(hosts: Hosts, tmp_path: Path) -> None:
    hosts.manifest(folders=("d",), files={"d/f": hosts.file(b"x")})
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "to/d").symlink_to(outside)
    with pytest.raises(Refused, match="nothing was fetched"):
        fetch(hosts.store, hosts.found(), tmp_path / "to", force=True)
    (tmp_path / "to/d").unlink()
    (tmp_path / "to/d").mkdir()
    (outside / "f").write_bytes(b"precious")
    (tmp_path / "to/d/f").symlink_to(outside / "f")
    assert fetch(hosts.store, hosts.found(), tmp_path / "to", force=True).complete
    assert ((outside / "f").read_bytes(), (tmp_path / "to/d/f").read_bytes()) == (b"precious", b"x")


def test_links_of_an_earlier_fetch_lead_no_new_link_out(hosts: Hosts, tmp_path: Path) -> None:
    hosts.manifest(folders=("d",), links={"d/up": ".."})
    fetch(hosts.store, hosts.found(), tmp_path / "to")
    hosts.manifest(seq=2, folders=("d",), links={"out": "d/up/.."})
    done = fetch(hosts.store, hosts.found(), tmp_path / "to")
    assert list(done.failures) == ["out"]
    assert not (tmp_path / "to/out").is_symlink()


@pytest.mark.parametrize("path", [".bastion-outputs/lock", ".Bastion-Outputs/x", "a\x1b[2J"])
def test_names_of_the_record_and_control_characters_are_refused(hosts: Hosts, tmp_path: Path, path: str) -> None:
    folders = [path.rpartition("/")[0]] if "/" in path else []
    hosts.manifest(folders=tuple(folders), files={path: hosts.file(b"x"), "good": hosts.file(b"y", name="g")})
    done = fetch(hosts.store, hosts.found(), tmp_path)
    assert path in done.failures
    assert (tmp_path / "good").read_bytes() == b"y"


def test_names_that_differ_in_case_collide_only_where_they_are_one_file(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.manifest(files={"Readme": hosts.file(b"1", name="1"), "README": hosts.file(b"2", name="2")})
    assert fetch(hosts.store, hosts.found(), tmp_path / "plain").files == 2
    monkeypatch.setattr(Destination, "_folds", staticmethod(lambda _own: True))
    done = fetch(hosts.store, hosts.found(), tmp_path / "folding")
    assert (done.files, len(done.failures)) == (1, 1)
    assert "case" in next(iter(done.failures.values()))


def test_what_programs_wrote_is_listed_as_not_proved_and_cannot_leave_the_folder(hosts: Hosts, tmp_path: Path) -> None:
    shared = f"{keys.output_shared('job', UID)}/"
    for name in ("step/model", "../../escape", "a", "a/b"):
        hosts.store.put(shared + name, name.encode(), generation=0)
    found = hosts.found(unproved=True)
    assert {file.proved for file in found.files} == {False}
    assert found.proved_only().files == ()
    done = fetch(hosts.store, found, tmp_path / "to")
    assert sorted(done.failures) == ["../../escape", "a"]
    assert (tmp_path / "to/step/model").read_bytes() == b"step/model"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["to"]
    counted = CountingStore(hosts.store)
    fetch(counted, found, tmp_path / "to")
    assert counted.read == []


def test_too_little_space_is_said_before_anything_is_fetched(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.manifest(files={"f": hosts.file(b"x" * 1000)})
    monkeypatch.setattr(Destination, "free_bytes", property(lambda _self: 999))
    with pytest.raises(Refused, match="nothing was fetched"):
        fetch(hosts.store, hosts.found(), tmp_path)
    assert tree(tmp_path) == {}


def test_a_disk_that_fills_up_stops_the_fetch_which_goes_on_later(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.manifest(files={"f": hosts.file(b"1" * 10, b"2" * 10, b"3" * 10)})
    plain: Callable[[int, bytes, int], None] = fetching_module()._write_at
    writes: list[int] = []

    def full(opened: int, data: bytes, at: int) -> None:
        writes.append(at)
        if len(writes) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(opened, data, at)

    monkeypatch.setattr(fetching_module(), "_write_at", full)
    done = fetch(hosts.store, hosts.found(), tmp_path, connections=1)
    assert "is full" in done.stopped
    assert (done.complete, done.missing, tree(tmp_path)) == (False, 1, {})
    done = fetch(hosts.store, hosts.found(), tmp_path, connections=1)
    assert (done.complete, done.size) == (True, 20)


def fetching_module() -> object:
    import importlib

    return importlib.import_module(fetching.__module__)


def test_two_fetches_into_one_folder_do_not_mix(hosts: Hosts, tmp_path: Path) -> None:
    hosts.manifest(files={"f": hosts.file(b"x")})
    held = Destination(tmp_path, UID)
    try:
        with pytest.raises(Refused, match="another bastion outputs"):
            fetch(hosts.store, hosts.found(), tmp_path)
    finally:
        held.close()
    assert fetch(hosts.store, hosts.found(), tmp_path).complete


def test_patterns_select_by_path(hosts: Hosts) -> None:
    hosts.manifest(folders=("ckpt",), files={p: hosts.file(b"x", name=p) for p in ("ckpt/a.bin", "log.json")})
    assert [file.path for file in hosts.found().selected(["*.json"]).files] == ["log.json"]
    assert [file.path for file in hosts.found().selected(["ckpt"]).files] == ["ckpt", "ckpt/a.bin"]
