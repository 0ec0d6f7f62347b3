"""Listings that hosts of other jobs wrote or replaced are not used."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random

import pytest

from bastion.agent.inputs import pinning
from bastion.agent.inputs.problems import InputProblem, Patience
from bastion.core.bucket import host_errors, pinned
from bastion.core.bucket.pinned import Listing, PinnedObject
from bastion.core.run_keys import RunKey
from tests.support.input_stage import FOLDER, RUN_KEY, URL, Stage

KEY = FOLDER + pinned.listing_name(RUN_KEY)
OTHER = RunKey(b"o" * 32)


@pytest.fixture(name="stage")
def _stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path)
    stage.put("a", b"good")
    stage.put("deep/a", b"evil")
    return stage


def overwrite(stage: Stage, key: str, data: bytes) -> None:
    present = stage.own.head(key)
    stage.own.put(key, data, generation=present.generation if present else 0)


def forge(stage: Stage) -> None:
    """Put a part and a listing with another object in the place of `a`."""
    meta = stage.memory.head("tokens/deep/a")
    assert meta is not None
    part = pinned.pack([PinnedObject("a", 4, meta.generation)])
    listing = Listing(
        url=URL, prefix="tokens/deep/", objects=1, size=4, disk_size=4096, parts=1, digests=[pinned.digest(part)]
    )
    overwrite(stage, FOLDER + pinned.part_name(0), part)
    overwrite(stage, KEY, pinned.with_proof(KEY, listing, OTHER))


def wait_for(stage: Stage) -> Listing:
    stop = threading.Event()
    patience = Patience(Random(1), stop, last_seconds=0.02)
    return pinning.wait_for(stage.own, FOLDER, run_key=RUN_KEY, patience=patience, cancelled=stop, poll_seconds=0.01)


@pytest.mark.parametrize("pins_before", [False, True])
def test_host_0_lists_again_over_a_forged_listing_and_says_so(stage: Stage, pins_before: bool) -> None:
    if pins_before:
        stage.agent("first").run()
    forge(stage)
    agent = stage.agent()
    agent.run()
    assert agent.files() == {"a": b"good", "deep/a": b"evil"}
    assert agent.notes == [
        f"listing the input {URL} again: {KEY}: it does not prove to be of this run; someone else may have written it"
    ]
    assert wait_for(stage).prefix == "tokens/"


def test_a_host_that_waits_believes_no_forged_listing(stage: Stage) -> None:
    stage.agent().run()
    forge(stage)
    with pytest.raises(InputProblem, match="does not prove to be of this run") as caught:
        wait_for(stage)
    assert caught.value.error == host_errors.HOST_FAILED


def test_an_agent_that_goes_on_uses_the_proved_listing(stage: Stage) -> None:
    stage.agent("first").run()
    stage.put("later", b"x")
    agent = stage.agent()
    agent.run()
    assert (sorted(agent.files()), agent.notes) == (["a", "deep/a"], [])
