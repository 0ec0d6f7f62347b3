"""What a command on one slice tries against the logs and outputs of another job: with the hosts' own account.

docs/explanation/security.md lists each attack with its test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.client import Client, Logged, Noted, follow
from bastion.core import limits
from bastion.core.bucket import keys, outputs, segment_proofs
from bastion.core.bucket.keys import Run
from bastion.core.bucket.manifest_proofs import ManifestProofs
from bastion.core.bucket.outputs import Manifest, Part, StoredFile
from bastion.core.bucket.protocol import HostPhase
from bastion.core.errors import AccessDenied, PreconditionFailed
from bastion.core.run_keys import RunKey
from bastion.ports import ObjectStore
from bastion.wiring.roots import Root
from tests.support.attacked_slices import AttackedSlices
from tests.support.rights.how_to import BASTION, BUCKET

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

OWN = RunKey(b"m" * 32)  # of the attacker's own run
FORGED = b"2027-01-15T08:00:00.000000Z stdout F forged\n"


@pytest.fixture(scope="module")
def slices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedSlices]:
    slices = AttackedSlices(tmp_path_factory.mktemp("slices"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(limits, "INFRASTRUCTURE_BACKOFF_SECONDS", 0.5)
        yield slices
    slices.close()


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """The victims' commands go on when this file is there."""
    return tmp_path / "release"


def waiting(release: Path, *, first: str = "echo one", then: str = "echo two") -> str:
    return f"bash -c '{first}; while [ ! -e {release} ]; do sleep 0.05; done; {then}'"


def running(slices: AttackedSlices, name: str, command: str, **options: object) -> str:
    """Start a job, wait until its command runs, and return its run."""
    run = slices.submit(name, command, **options)  # type: ignore[arg-type]
    slices.until(lambda: any(each.run == run for each in slices.slices.created))
    slices.until(lambda: (report := slices.report(run)) is not None and report.phase is HostPhase.RUNNING)
    return run


def user(slices: AttackedSlices) -> Client:
    return Client(slices.store("user"), Root(bucket=f"gs://{BUCKET}", bastion=BASTION), slices.clock)


def read(slices: AttackedSlices, name: str, run: str) -> tuple[list[str], int]:
    """The lines of stdout and stderr that a user sees, and the number of objects that were left out."""
    parsed = Run.parse(run)
    assert parsed is not None
    logs = user(slices).logs(name, parsed, hosts=1)
    return [piece.text.decode() for pieces in logs.drain() for piece in pieces], logs.unproved


def put(store: ObjectStore, key: str, data: bytes) -> None:
    store.put(key, data, generation=0)


def test_a_forged_log_line_is_left_out_while_the_job_runs_and_after_its_end(
    slices: AttackedSlices, release: Path
) -> None:
    run = running(slices, "forged-log", waiting(release))
    slices.until(lambda: read(slices, "forged-log", run)[0] == ["one"])
    for number in range(100, 103):
        key = keys.log_segment("forged-log", run, 0, number)
        put(slices.attacker, key, segment_proofs.with_proof(key, FORGED, OWN) if number % 2 else FORGED)
    assert read(slices, "forged-log", run) == (["one"], 3)
    release.touch()
    slices.until(lambda: slices.result("forged-log"))
    put(slices.attacker, keys.log_segment("forged-log", run, 0, 200), FORGED)
    put(slices.attacker, keys.log_segment("forged-log", run, 7, 1), FORGED)  # a host that the job has not
    put(slices.attacker, keys.log_segment("forged-log", f"{run.partition('-')[0]}-9", 0, 1), FORGED)  # nor this attempt
    assert read(slices, "forged-log", run) == (["one", "two"], 5)
    assert read(slices, "forged-log", f"{run.partition('-')[0]}-9") == ([], 1)
    events = list(follow(user(slices), "forged-log", run.partition("-")[0]))
    shown = [piece.text for event in events if isinstance(event, Logged) for piece in event.pieces]
    assert shown == [b"one", b"two"]
    assert [event.text for event in events if isinstance(event, Noted)] == [
        f"left out 5 objects below logs/forged-log.d/{run}/: no host of this attempt proves to have written them, so "
        "others may have; use --unproved to see them"
    ]


def test_taken_sequence_numbers_neither_stop_nor_hide_a_log(slices: AttackedSlices, release: Path) -> None:
    run = running(slices, "taken-numbers", waiting(release, then="echo two; sleep 1; echo three"))
    slices.until(lambda: read(slices, "taken-numbers", run)[0] == ["one"])
    folder = keys.log_segments("taken-numbers", run, 0)
    last = max(int(meta.key.removeprefix(folder)) for meta in slices.attacker.list(folder))
    for number in (*range(last + 1, last + 40), 999_999_999):
        put(slices.attacker, keys.log_segment("taken-numbers", run, 0, number), FORGED)
    release.touch()
    slices.until(lambda: slices.result("taken-numbers"))
    lines, left_out = read(slices, "taken-numbers", run)
    assert left_out == 40
    note, *rest = lines[1:]
    assert (lines[0], rest) == ("one", ["two", "three"])
    which = f"{last + 1:010d} to {last + 39:010d}"
    assert note == (f"bastion: left out at {which}: objects that prove no host of this attempt, where its log goes on")


def test_a_segment_copied_from_another_place_proves_nothing(
    slices: AttackedSlices, release: Path, tmp_path: Path
) -> None:
    other = running(slices, "other-log", waiting(tmp_path / "other", first="echo I am another"))
    slices.until(lambda: read(slices, "other-log", other)[0] == ["I am another"])
    run = running(slices, "replayed-log", waiting(release))
    slices.until(lambda: read(slices, "replayed-log", run)[0] == ["one"])
    own = slices.attacker.get(keys.log_segment("replayed-log", run, 0, 1)).data
    of_another = slices.attacker.get(keys.log_segment("other-log", other, 0, 1)).data
    for number, copy in enumerate((own, of_another), 500):
        put(slices.attacker, keys.log_segment("replayed-log", run, 0, number), copy)
    put(slices.attacker, keys.log_segment("replayed-log", run, 0, 1, source="proxy"), own)
    assert read(slices, "replayed-log", run) == (["one"], 2)
    proxy = user(slices).logs("replayed-log", Run(run.partition("-")[0], 1), hosts=1, source="proxy")
    assert (list(proxy.drain()), proxy.unproved) == ([], 1)
    release.touch()
    (tmp_path / "other").touch()
    slices.until(lambda: slices.result("replayed-log") and slices.result("other-log"))


def test_no_host_overwrites_or_deletes_a_segment_or_writes_the_daemons_logs(
    slices: AttackedSlices, release: Path
) -> None:
    run = running(slices, "kept-log", waiting(release))
    slices.until(lambda: read(slices, "kept-log", run)[0] == ["one"])
    meta = slices.attacker.head(keys.log_segment("kept-log", run, 0, 1))
    assert meta is not None
    with pytest.raises(AccessDenied):
        slices.attacker.put(meta.key, FORGED, generation=meta.generation)
    with pytest.raises(AccessDenied):
        slices.attacker.delete(meta.key, generation=meta.generation)
    with pytest.raises((AccessDenied, PreconditionFailed)):
        slices.attacker.put(meta.key, FORGED, generation=0)
    for key in (keys.log("kept-log"), keys.log("of-a-later-job"), keys.log(f"{BASTION}-20991231"), keys.log(BASTION)):
        with pytest.raises((AccessDenied, PreconditionFailed)):
            put(slices.attacker, key, FORGED)
    release.touch()
    slices.until(lambda: slices.result("kept-log"))
    assert read(slices, "kept-log", run) == (["one", "two"], 0)


# -- outputs -------------------------------------------------------------------------------------------------------


SAVES = (
    'if [ -e out/step ]; then cat out/step; else echo begins; fi; echo 41 > out/step; touch "$BASTION_CHECKPOINT_FILE"'
)


def stored(slices: AttackedSlices, name: str, run: str) -> list[tuple[int, Manifest]]:
    """The host's manifests that prove its run, by their numbers."""
    place = keys.outputs(name, run.partition("-")[0], 0)
    proofs = ManifestProofs(place=place, public_keys={run: slices.key_of(run).public})
    found = []
    for meta in slices.attacker.list(place + outputs.MANIFEST_PREFIX):
        seq = outputs.seq_of_manifest(meta.key.removeprefix(place))
        assert seq is not None
        found.append((seq, proofs.read(seq, slices.attacker.get(meta.key).data)))
    return found


def saved(slices: AttackedSlices, name: str, release: Path) -> tuple[str, str]:
    """A job whose first attempt has stored a checkpoint and lost its node; its run, and the folder of its outputs."""
    run = running(slices, name, waiting(release, first=SAVES, then="true"), output_dir="out")
    slices.until(lambda: [each for _, each in stored(slices, name, run) if "step" in each.files])
    return run, keys.outputs(name, run.partition("-")[0], 0)


def second_attempt(slices: AttackedSlices, name: str, run: str, release: Path) -> list[str]:
    """Take the node away, and return what the log of the next attempt says before its command has ended."""
    slices.lose(run)
    again = f"{run.partition('-')[0]}-2"
    slices.until(lambda: any(each.run == again for each in slices.slices.created))
    slices.until(lambda: (report := slices.report(again)) is not None and report.phase is HostPhase.RUNNING)
    release.touch()
    slices.until(lambda: slices.result(name))
    return read(slices, name, again)[0]


def forged(slices: AttackedSlices, folder: str, seq: int, run: str) -> Manifest:
    """Store another file under the name `step`, and return a manifest that names it."""
    data = b"forged\n"
    name = f"{seq:010d}/files/step"
    put(slices.attacker, folder + name, data)
    part = Part(object=name, size=len(data), sha256=hashlib.sha256(data).hexdigest())
    return Manifest(run=run, seq=seq, files={"step": StoredFile(mode=0o644, mtime_ns=0, parts=(part,))})


def test_a_forged_manifest_is_passed_over(slices: AttackedSlices, release: Path) -> None:
    run, folder = saved(slices, "forged-manifest", release)
    for seq, key in ((7000, OWN), (7001, None)):
        manifest = forged(slices, folder, seq, run)
        data = ManifestProofs(place=folder).to_bytes(manifest, key) if key is not None else manifest.to_bytes()
        put(slices.attacker, folder + outputs.manifest_name(seq), data)
    said = second_attempt(slices, "forged-manifest", run, release)
    assert [line.partition(": it does")[0] for line in said[:2]] == [
        f"bastion: skipping outputs: manifest-{seq:010d}" for seq in (7001, 7000)
    ]
    assert said[2].startswith(f"bastion: restored outputs of {run}: ")
    assert said[3] == "41"


def test_a_manifest_copied_from_another_job_or_to_a_later_number_is_passed_over(
    slices: AttackedSlices, release: Path, tmp_path: Path
) -> None:
    other, theirs = saved(slices, "other-outputs", tmp_path / "other")
    run, folder = saved(slices, "copied-manifest", release)
    seq, _ = stored(slices, "other-outputs", other)[-1]
    copy = slices.attacker.get(theirs + outputs.manifest_name(seq)).data
    own, _ = stored(slices, "copied-manifest", run)[-1]
    put(slices.attacker, folder + outputs.manifest_name(8000), copy)
    put(
        slices.attacker,
        folder + outputs.manifest_name(8001),
        slices.attacker.get(folder + outputs.manifest_name(own)).data,
    )
    said = second_attempt(slices, "copied-manifest", run, release)
    assert [line.partition(": it does")[0] for line in said[:2]] == [
        f"bastion: skipping outputs: manifest-{number:010d}" for number in (8001, 8000)
    ]
    assert said[2].startswith(f"bastion: restored outputs of {run}: ")
    (tmp_path / "other").touch()
    slices.until(lambda: slices.result("other-outputs"))


def test_an_object_replaced_below_a_true_manifest_is_not_restored(slices: AttackedSlices, release: Path) -> None:
    run, folder = saved(slices, "replaced-object", release)
    (part,) = stored(slices, "replaced-object", run)[-1][1].files["step"].parts
    slices.overwrite(folder + part.object, b"66\n")  # as many bytes: hosts of one account may replace it
    said = second_attempt(slices, "replaced-object", run, release)
    assert any(line.endswith(f"{part.object} is damaged") for line in said)
    assert "66" not in said
    assert said[-1] == "begins"
