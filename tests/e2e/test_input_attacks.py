"""What a command on one slice tries against the inputs of another job: with the hosts' own account.

docs/explanation/security.md lists each attack with its test.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.adapters.folder.store import DirectoryStore
from bastion.client import Client
from bastion.core import limits
from bastion.core.bucket import keys, pinned
from bastion.core.bucket.keys import Run
from bastion.core.bucket.pinned import Listing, PinnedObject
from bastion.core.run_keys import RunKey
from bastion.wiring.roots import Root
from tests.support.attacked_slices import AttackedSlices
from tests.support.rights.how_to import BASTION, BUCKET

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

OWN = RunKey(b"m" * 32)  # of the attacker's own run


@pytest.fixture
def slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AttackedSlices]:
    monkeypatch.setattr(limits, "INFRASTRUCTURE_BACKOFF_SECONDS", 0.5)
    slices = AttackedSlices(tmp_path / "slices")
    yield slices
    slices.close()


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """An input: `a`, and what the attacker wants the victim to read in its place."""
    folder = tmp_path / "tokens"
    (folder / "other").mkdir(parents=True)
    (folder / "a").write_text("right\n")
    (folder / "other" / "a").write_text("wrong\n")
    return folder


def forged(tokens: Path) -> tuple[Listing, bytes]:
    """A listing with its part, by which hosts fetch `other/a` as `a`."""
    meta = DirectoryStore(tokens, create=False).head("other/a")
    assert meta is not None
    part = pinned.pack([PinnedObject("a", meta.size, meta.generation)])
    digests = [pinned.digest(part)]
    listing = Listing(
        url=str(tokens), prefix="other/", objects=1, size=meta.size, disk_size=4096, parts=1, digests=digests
    )
    return listing, part


def folder_of(name: str, run: str) -> str:
    parsed = Run.parse(run)
    assert parsed is not None
    return keys.pinned_input(name, parsed, 0)


def read(slices: AttackedSlices, name: str, run: str, *, hosts: int = 1) -> list[str]:
    """The lines that a user sees."""
    parsed = Run.parse(run)
    assert parsed is not None
    client = Client(slices.store("user"), Root(bucket=f"gs://{BUCKET}", bastion=BASTION), slices.clock)
    pieces = client.logs(name, parsed, hosts=hosts).drain()
    return [piece.text.decode() for several in pieces for piece in several]


def test_a_listing_made_early_under_every_name_that_can_be_guessed_is_not_used(
    slices: AttackedSlices, tokens: Path
) -> None:
    run = slices.submit("squatted-input", "cat data/a", inputs=[{"url": str(tokens), "dir": "data"}])
    folder = folder_of("squatted-input", run)
    listing, part = forged(tokens)
    for name in ("listing", pinned.listing_name(OWN), f"listing-{run}"):
        slices.overwrite(folder + name, pinned.with_proof(folder + name, listing, OWN))
    for number in range(3):
        slices.overwrite(folder + pinned.part_name(number), part)
    slices.until(lambda: slices.result("squatted-input"))
    assert slices.result("squatted-input") == ("succeeded", 0, 1)
    assert read(slices, "squatted-input", run)[-1] == "right"


@pytest.mark.parametrize("replaced", ["listing", "part"])
def test_a_listing_replaced_before_another_host_read_it_is_pinned_anew_by_the_next_attempt(
    slices: AttackedSlices, tokens: Path, replaced: str
) -> None:
    is_replaced = threading.Event()
    slices.before_input = lambda host: host == 0 or is_replaced.wait(30.0)
    inputs = [{"url": str(tokens), "dir": "data"}]
    run = slices.submit("forged-input", "cat data/a", hosts=2, inputs=inputs)
    folder = folder_of("forged-input", run)
    slices.until(lambda: list(slices.attacker.list(folder + "listing")))
    (name,) = (meta.key for meta in slices.attacker.list(folder + "listing"))
    listing, part = forged(tokens)
    slices.overwrite(folder + pinned.part_name(0), part)
    if replaced == "listing":
        slices.overwrite(name, pinned.with_proof(name, listing, OWN))
    is_replaced.set()
    slices.until(lambda: slices.result("forged-input"))
    assert slices.result("forged-input") == ("succeeded", 0, 2)
    why = "does not prove to be of this run" if replaced == "listing" else "is not what this run stored"
    first = read(slices, "forged-input", run, hosts=2)
    assert any(why in line for line in first), first
    again = read(slices, "forged-input", f"{run.partition('-')[0]}-2", hosts=2)
    assert [line for line in again if not line.startswith("bastion: ")] == ["right", "right"]
    assert "wrong" not in first
