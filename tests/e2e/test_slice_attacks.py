"""What a command on one slice tries against another run: with the hosts' own account, at buckets with their policies.

docs/explanation/security.md lists each attack with its test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import Claim, HostPhase, Order, OrderAction, Report
from bastion.core.errors import AccessDenied, PreconditionFailed
from bastion.core.run_keys import RunKey
from tests.support.attacked_slices import AttackedSlices
from tests.support.rights.how_to import PRIVATE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

OWN = RunKey(b"m" * 32)  # of the attacker's own run


@pytest.fixture(scope="module")
def slices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedSlices]:
    slices = AttackedSlices(tmp_path_factory.mktemp("slices"))
    yield slices
    slices.close()


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """The victims' commands end when this file is there."""
    return tmp_path / "release"


def waiting(release: Path, code: int) -> str:
    return f"bash -c 'while [ ! -e {release} ]; do sleep 0.05; done; exit {code}'"


def victim(slices: AttackedSlices, name: str, release: Path, code: int, *, hosts: int = 1) -> str:
    """Start a job, wait until its command runs, and return its run."""
    run = slices.submit(name, waiting(release, code), hosts=hosts)
    slices.until(
        lambda: (
            all(
                (report := slices.report(run, host)) is not None and report.phase is HostPhase.RUNNING
                for host in range(hosts)
            )
            if slices.slices.created and any(each.run == run for each in slices.slices.created)
            else False
        )
    )
    slices.until(lambda: slices.record(name).attempt and slices.record(name).attempt.running_since)
    return run


def test_a_forged_report_ends_no_job_and_is_written_over(slices: AttackedSlices, release: Path) -> None:
    run = victim(slices, "forged-report", release, 7)
    mine = slices.report(run)
    assert mine is not None
    forged = Report(run=run, host=0, phase=HostPhase.EXITED, exit_code=0, sequence=2**50)
    for signed in (
        forged,
        protocol.sign(forged, OWN),
        forged.model_copy(update={"signature": mine.signature}),
        mine.model_copy(update={"phase": HostPhase.EXITED, "exit_code": 0}),
    ):
        slices.overwrite(keys.report(run, 0), signed.to_bytes())
        slices.step()
        assert any(f"{keys.report(run, 0)} of forged-report is ignored" in problem for problem in slices.problems)
        assert slices.record("forged-report").attempt.ending is None
        slices.until(lambda: slices.report(run) is not None)
    release.touch()
    slices.until(lambda: slices.result("forged-report"))
    assert slices.result("forged-report") == ("failed", 7, 1)


def test_a_replayed_report_changes_nothing(slices: AttackedSlices, release: Path, tmp_path: Path) -> None:
    other = victim(slices, "ended-well", tmp_path / "other", 0)
    (tmp_path / "other").touch()
    slices.until(lambda: (report := slices.report(other)) is not None and report.phase is HostPhase.EXITED)
    of_another = slices.attacker.get(keys.report(other, 0)).data
    run = victim(slices, "replayed-report", release, 7)
    running = slices.attacker.get(keys.report(run, 0)).data
    slices.overwrite(keys.report(run, 0), of_another)
    slices.ticks(2)
    assert slices.record("replayed-report").attempt.ending is None
    slices.until(lambda: slices.report(run) is not None)
    release.touch()
    slices.until(lambda: (report := slices.report(run)) is not None and report.phase is HostPhase.EXITED)
    slices.step()
    slices.overwrite(keys.report(run, 0), running)  # signed, and older than what the daemon has read
    slices.until(lambda: slices.result("replayed-report"))
    assert slices.result("replayed-report") == ("failed", 7, 1)
    slices.until(lambda: slices.result("ended-well"))
    assert slices.result("ended-well") == ("succeeded", 0, 1)


def test_a_deleted_report_is_written_again_and_ends_no_job(slices: AttackedSlices, release: Path) -> None:
    run = victim(slices, "deleted-report", release, 7)
    for _ in range(3):
        meta = slices.attacker.head(keys.report(run, 0))
        assert meta is not None
        slices.attacker.delete(meta.key, generation=meta.generation)
        slices.ticks(2)
        assert slices.record("deleted-report").attempt.ending is None
        slices.until(lambda: slices.report(run) is not None)
    release.touch()
    slices.until(lambda: slices.result("deleted-report"))
    assert slices.result("deleted-report") == ("failed", 7, 1)


def test_a_claim_made_early_under_every_name_that_can_be_guessed_stops_no_job(
    slices: AttackedSlices, release: Path
) -> None:
    earlier = slices.attacker.list(keys.JOBS_CLAIMS)
    seen = [meta.key.rpartition(".")[2] for meta in earlier]
    run = slices.submit("early-claim", waiting(release, 0), hosts=2)
    slices.until(lambda: any(each.run == run for each in slices.slices.created), hosts=False)
    attempt = slices.record("early-claim").attempt
    token = next(each.token for each in slices.slices.created if each.run == run)
    for tag in ("", ".", f".{token}", f".{attempt.public_key}", f".{OWN.claim_tag}", *(f".{tag}" for tag in seen)):
        early = protocol.sign(Claim(run=run, closed="by a peer"), OWN)
        slices.attacker.put(f"{keys.JOBS_CLAIMS}{run}{tag}", early.to_bytes(), generation=0)
    slices.ticks(3)
    release.touch()
    slices.until(lambda: slices.result("early-claim"))
    assert slices.result("early-claim") == ("succeeded", 0, 1)


def test_a_claim_is_neither_replaced_nor_forged(slices: AttackedSlices, release: Path) -> None:
    run = victim(slices, "forged-claim", release, 7, hosts=2)
    key = keys.claim(run, slices.key_of(run).claim_tag)
    meta = slices.attacker.head(key)
    assert meta is not None
    forged = protocol.sign(Claim(run=run, closed="by a peer"), OWN).to_bytes()
    with pytest.raises(AccessDenied):
        slices.attacker.put(key, forged, generation=meta.generation)
    with pytest.raises(AccessDenied):
        slices.attacker.delete(key, generation=meta.generation)
    with pytest.raises((PreconditionFailed, AccessDenied)):
        slices.attacker.put(key, forged, generation=0)
    slices.ticks(3)
    release.touch()
    slices.until(lambda: slices.result("forged-claim"))
    assert slices.result("forged-claim") == ("failed", 7, 1)


def test_a_stolen_order_holds_no_secret_and_no_order_can_be_written(slices: AttackedSlices, release: Path) -> None:
    run = victim(slices, "stolen-order", release, 7)
    order = protocol.read(Order, slices.attacker.get(keys.order(run)).data)
    assert order.command == waiting(release, 7), "its text is no secret"
    text = order.to_bytes().decode()
    assert slices.key_of(run).text not in text
    assert slices.key_of(run).claim_tag not in text
    stop = Order(run=run, action=OrderAction.STOP).to_bytes()
    meta = slices.attacker.head(keys.order(run))
    assert meta is not None
    for generation in (0, meta.generation):
        with pytest.raises((AccessDenied, PreconditionFailed)):
            slices.attacker.put(keys.order(run), stop, generation=generation)
    with pytest.raises(AccessDenied):
        slices.attacker.delete(keys.order(run), generation=meta.generation)
    slices.ticks(2)
    release.touch()
    slices.until(lambda: slices.result("stolen-order"))
    assert slices.result("stolen-order") == ("failed", 7, 1)


def test_a_forged_beat_ends_no_job(slices: AttackedSlices, release: Path) -> None:
    run = victim(slices, "forged-beat", release, 7)
    for host in (0, 1, 99):
        slices.overwrite(keys.beat(run, host), b"forged")
    slices.ticks(5)
    assert slices.record("forged-beat").attempt.ending is None
    release.touch()
    slices.until(lambda: slices.result("forged-beat"))
    assert slices.result("forged-beat") == ("failed", 7, 1)


def test_no_secret_of_a_run_is_in_the_bucket_its_commands_environment_or_within_reach_of_others(
    slices: AttackedSlices, release: Path, tmp_path: Path
) -> None:
    shown = tmp_path / "environment"
    run = slices.submit("curious", f"cat /proc/self/environ > {shown}")
    slices.until(lambda: slices.result("curious"))
    key = slices.key_of(run)
    private = slices.store("daemon", PRIVATE)
    secret = private.get(keys.RUN_SECRET).data.decode().strip()
    assert len(bytes.fromhex(secret)) == 32
    assert run in shown.read_text("utf-8")
    for hidden in (key.text, secret, key.claim_tag):
        assert hidden not in shown.read_text("utf-8")
    everything = slices.store("daemon")
    for meta in everything.list(""):
        data = everything.get(meta.key).data.decode("utf-8", "replace")
        assert key.text not in data, meta.key
        assert secret not in data, meta.key
        assert not (key.claim_tag in data or (key.claim_tag in meta.key and not meta.key.startswith("jobs/claims/")))
    for caller in ("worker", "user", "stranger", "other project's worker"):
        with pytest.raises(AccessDenied):
            slices.store(caller, PRIVATE).get(keys.RUN_SECRET)
    meta = private.head(keys.RUN_SECRET)
    assert meta is not None
    with pytest.raises(AccessDenied):
        private.put(keys.RUN_SECRET, b"another", generation=meta.generation)
    assert (
        json.loads(everything.get(keys.complete("curious")).data)["result"]["attempts"][0]["public_key"] == key.public
    )
