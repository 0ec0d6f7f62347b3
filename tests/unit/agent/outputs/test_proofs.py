"""Manifests that others put into a host's outputs: they change nothing of what is stored and restored."""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random

import pytest

from bastion.agent.backoff import Backoff
from bastion.agent.outputs.restore import Restored, restore
from bastion.agent.outputs.store import OutputStore
from bastion.agent.outputs.sync import OutputSync
from bastion.core.bucket import keys, outputs
from bastion.core.bucket.manifest_proofs import ManifestProofs, UnprovedManifest
from bastion.core.bucket.outputs import Manifest, Part, StoredFile
from bastion.core.run_keys import RunKey
from bastion.testing.memory_store import MemoryStore

UID = "abcdefghij"
FOLDER = keys.outputs("job", UID, 0)
FIRST, SECOND, THEIRS = (RunKey(letter * 32) for letter in (b"1", b"2", b"t"))
PROOFS = ManifestProofs(place=FOLDER, public_keys={f"{UID}-1": FIRST.public, f"{UID}-2": SECOND.public})


def sync_of(store: MemoryStore, folder: Path, run: int) -> OutputSync:
    key = FIRST if run == 1 else SECOND
    return OutputSync(
        OutputStore(store, FOLDER, proofs=PROOFS, run_key=key),
        folder,
        run=f"{UID}-{run}",
        backoff=Backoff(Random(1)),
        on_done=lambda: None,
        settle_seconds=0.0,
    )


def save(sync: OutputSync, folder: Path, text: str) -> None:
    (folder / "step").write_text(text)
    sync.sync_once()


def forge(store: MemoryStore, seq: int, data: bytes | None = None) -> None:
    """A manifest by another run's host, with an object of its own."""
    content = b"forged"
    name = f"{seq:010d}/files/step"
    store.put(FOLDER + name, content, generation=0)
    part = Part(object=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())
    manifest = Manifest(run=f"{UID}-1", seq=seq, files={"step": StoredFile(mode=0o644, mtime_ns=0, parts=(part,))})
    signed = PROOFS.to_bytes(manifest, THEIRS) if data is None else data
    store.put(FOLDER + outputs.manifest_name(seq), signed, generation=0)


def restored(store: MemoryStore, into: Path) -> Restored:
    return restore(store, FOLDER, into, run=f"{UID}-3", proofs=PROOFS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def test_forged_manifests_make_no_true_one_obsolete(store: MemoryStore, folder: Path, tmp_path: Path) -> None:
    save(sync_of(store, folder, 1), folder, "41")
    for seq in (500, 501, 502):
        forge(store, seq)
    later = sync_of(store, folder, 2)
    for step in range(3):
        save(later, folder, f"{50 + step}")
    found = restored(store, tmp_path / "new")
    assert found.manifest is not None
    assert (tmp_path / "new" / "step").read_text() == "52"
    # The true manifest of the attempt before is still there, too.
    kept = [meta.key for meta in store.list(FOLDER + "manifest-")]
    runs = {outputs.read(store.get(key).data).run for key in kept if int(key[-10:]) not in (500, 501, 502)}
    assert runs == {f"{UID}-1", f"{UID}-2"}


def test_what_an_unproved_manifest_names_is_not_deleted(store: MemoryStore, folder: Path) -> None:
    """It may be of a version that signed none."""
    save(sync_of(store, folder, 1), folder, "41")
    forge(store, 500)
    store.put(f"{FOLDER}{499:010d}/files/left", b"half stored", generation=0)
    save(sync_of(store, folder, 2), folder, "42")
    assert store.head(f"{FOLDER}{500:010d}/files/step") is not None
    assert store.head(f"{FOLDER}{499:010d}/files/left") is None


def test_taken_numbers_of_manifests_cost_one_listing(store: MemoryStore, folder: Path, tmp_path: Path) -> None:
    sync = sync_of(store, folder, 1)
    save(sync, folder, "41")
    assert sync._store.newest is not None
    seq = sync._store.newest.seq
    for number in range(seq + 1, seq + 200):
        store.put(FOLDER + outputs.manifest_name(number), b"{}", generation=0)
    save(sync, folder, "42")
    save(sync, folder, "43")
    found = restored(store, tmp_path / "new")
    assert found.manifest is not None
    assert found.manifest.seq > seq + 199
    assert (tmp_path / "new" / "step").read_text() == "43"


def test_only_the_first_of_many_forged_manifests_are_told(store: MemoryStore, folder: Path, tmp_path: Path) -> None:
    save(sync_of(store, folder, 1), folder, "41")
    for seq in range(500, 600):
        forge(store, seq, data=b"{" * (seq % 2))
    found = restored(store, tmp_path / "new")
    assert (len(found.passed_over), found.passed_over_more) == (5, 95)
    assert (tmp_path / "new" / "step").read_text() == "41"


def test_a_field_of_a_newer_version_is_signed_too() -> None:
    manifest = Manifest(run=f"{UID}-1", seq=1)
    data = PROOFS.to_bytes(manifest, FIRST)
    assert PROOFS.read(1, data) == manifest
    for changed in (data.replace(b"{", b'{"newer":1,', 1), data.replace(b'"links":{}', b'"links":{"a":"b"}')):
        assert changed != data
        with pytest.raises(UnprovedManifest):
            PROOFS.read(1, changed)
    elsewhere = ManifestProofs(place=keys.outputs("job", UID, 1), public_keys=PROOFS.public_keys)
    for proofs, seq in ((elsewhere, 1), (PROOFS, 2)):
        with pytest.raises(UnprovedManifest):
            proofs.read(seq, data)
