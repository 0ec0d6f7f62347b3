"""`bastion tensorboard --once`: copies, and says by its exit code whether all of them are whole."""

from __future__ import annotations

import hashlib

import pytest

from bastion.core.bucket import keys, outputs
from bastion.core.bucket.manifest_proofs import ManifestProofs
from bastion.core.bucket.outputs import Manifest, Part, StoredFile

pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")

_EVENTS = "tensorboard/events.out.tfevents.1700000000.host.1.0"


def stores(bastion, data: bytes, promised: bytes) -> None:
    """The job's host has stored an event file, or something else than it promised."""
    bastion.submit("job", instance_type="tpu-v4-8")
    bastion.settle(2)
    folder = keys.outputs("job", bastion.record("job").uid, 0)
    part = Part(object="0000000001/files/e", size=len(promised), sha256=hashlib.sha256(promised).hexdigest())
    manifest = Manifest(
        run=bastion.attempt("job"),
        seq=1,
        folders=("tensorboard",),
        files={_EVENTS: StoredFile(mode=0o644, mtime_ns=1, parts=(part,))},
    )
    bastion.store.put(folder + part.object, data, generation=0)
    proved = ManifestProofs(place=folder).to_bytes(manifest, bastion.run_keys.drawn(manifest.run))
    bastion.store.put(folder + outputs.manifest_name(1), proved, generation=0)


def test_whole_copies_are_a_success(run, bastion, tmp_path) -> None:
    stores(bastion, b"events", b"events")
    done = run("tensorboard", "job", f"--logdir={tmp_path}", "--once")
    assert (done.code, done.err) == (0, "job: 1 event file\n")
    assert (tmp_path / "job" / _EVENTS.removeprefix("tensorboard/")).read_bytes() == b"events"


def test_a_damaged_file_is_told_and_no_success(run, bastion, tmp_path) -> None:
    stores(bastion, b"damage", b"events")
    done = run("tensorboard", "job", f"--logdir={tmp_path}", "--once")
    assert done.code == 1
    assert f"job: host 0: {_EVENTS}: is damaged" in done.err


def test_a_job_without_event_files_may_get_some_until_it_has_ended(run, bastion, tmp_path) -> None:
    bastion.submit("job", instance_type="tpu-v4-8")
    bastion.settle(2)
    command = ("tensorboard", "job", f"--logdir={tmp_path}", "--once")
    assert run(*command).err.startswith("job has stored no event files yet; its command writes them to")
    run("cancel", "job")
    bastion.settle(10)
    assert run(*command).err.startswith("job ended without event files; its command writes them to")
