"""Whoever can write to the bucket but has no key: whatever it does, a reader gets the right bytes or an error."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from bastion.adapters.kms import keyring
from bastion.core.errors import SealBroken
from bastion.proxy.service.upstream import Asked, UpstreamUnavailable
from tests.support.proxy_objects import FIRST, INNER, SEGMENT, content, put_raw, stage, store
from tests.support.proxy_stage import KEY, InProcessAnswer, Stage, body_of, document

__all__ = ["stage"]

# Three segments, the last of 100 bytes.
SIZE = FIRST + INNER + 100
SEALED = 2 * SEGMENT + 116
DATA = content(SIZE)


def outcome(stage: Stage, name: str = "a", text: str = "") -> str:
    """How a read ended: `refused` before the head, or `broken` in the middle; a clean end is a failure of the test."""
    response = stage.get(name, headers=[("Range", text)] if text else [])
    if response.status >= 400:
        said = body_of(response)
        assert DATA[:64] not in said
        assert 400 <= response.status < 500, said
        return "refused"
    received = b""
    try:
        for piece in response.body:  # type: ignore[union-attr]
            received += bytes(piece)  # type: ignore[arg-type]
    except (SealBroken, UpstreamUnavailable):
        assert DATA.startswith(received)
        return "broken"
    finally:
        response.close()
    raise AssertionError("a tampered object was read to a clean end")


def in_the_bytes(stage: Stage, change: Callable[[bytes], bytes]) -> None:
    """Changes what is stored, the attributes stay."""
    resource, data = stage.stored("a")
    put_raw(stage, {"name": "a", "metadata": resource["metadata"]}, change(data))


def flipped(at: int, bit: int = 0) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("place", "found"),
    [
        *((at, "refused") for at in (0, 1, 32, 33, 39, 40, 41, SEGMENT - 17, SEGMENT - 16, SEGMENT - 1)),
        *((at, "broken") for at in (SEGMENT, SEGMENT + 1, 2 * SEGMENT - 1, 2 * SEGMENT, SEALED - 17, SEALED - 1)),
    ],
)
def test_a_flipped_bit_is_found_wherever_it_is(stage: Stage, place: int, found: str) -> None:
    store(stage, "a", DATA)
    for bit in (0, 7):
        in_the_bytes(stage, flipped(place, bit))
        assert outcome(stage) == found
        in_the_bytes(stage, flipped(place, bit))
    assert stage.content("a") == DATA


def test_a_flipped_bit_in_a_known_object_is_found(stage: Stage) -> None:
    store(stage, "a", DATA)
    stage.content("a")

    def flip(asked: Asked, answer: InProcessAnswer) -> None:
        if "alt=media" in asked.target:
            answer.replace(flipped(100)(answer.content))

    stage.upstream.after = flip
    assert outcome(stage) == "refused"
    assert outcome(stage, text="bytes=300000-300010") == "refused"


@pytest.mark.parametrize(
    "length", [0, 1, 39, 40, 55, 56, 57, SEGMENT - 1, SEGMENT, SEGMENT + 1, SEGMENT + 17, 2 * SEGMENT, SEALED - 1]
)
def test_a_truncated_object_never_ends_cleanly(stage: Stage, length: int) -> None:
    store(stage, "a", DATA)
    in_the_bytes(stage, lambda data: data[:length])
    assert outcome(stage) in ("refused", "broken")
    assert outcome(stage, text="bytes=-1") == "refused"


@pytest.mark.parametrize("extra", [1, 16, 17, SEGMENT])
def test_bytes_at_the_end_are_found(stage: Stage, extra: int) -> None:
    store(stage, "a", DATA)
    in_the_bytes(stage, lambda data: data + bytes(extra))
    assert outcome(stage) in ("refused", "broken")


@pytest.mark.parametrize("break_after", [0, 1, 40, SEGMENT - 1])
def test_an_answer_that_breaks_off_in_the_first_segment_is_unavailability(stage: Stage, break_after: int) -> None:
    store(stage, "a", DATA)
    stage.content("a")
    stage.upstream.break_after = break_after
    response = stage.get("a")
    stage.upstream.break_after = None
    assert response.status == 503
    body_of(response)


@pytest.mark.parametrize("break_after", [SEGMENT, SEGMENT + 1, 2 * SEGMENT, SEALED - 1])
def test_an_answer_that_breaks_off_later_never_ends_cleanly(stage: Stage, break_after: int) -> None:
    store(stage, "a", DATA)
    stage.content("a")
    stage.upstream.break_after = break_after
    assert outcome(stage) == "broken"


def test_swapped_segments_are_found(stage: Stage) -> None:
    data = content(5 * INNER)
    store(stage, "a", data)
    sealed = stage.stored("a")[1]
    in_the_bytes(stage, lambda _: sealed[: 2 * SEGMENT] + sealed[3 * SEGMENT : 4 * SEGMENT]
                 + sealed[2 * SEGMENT : 3 * SEGMENT] + sealed[4 * SEGMENT :])  # fmt: skip
    response = stage.get("a")
    with pytest.raises(SealBroken):
        body_of(response)
    assert outcome(stage, text=f"bytes={FIRST + INNER}-{FIRST + INNER + 10}") == "refused"


def test_a_segment_that_was_left_out_is_found(stage: Stage) -> None:
    store(stage, "a", DATA)
    in_the_bytes(stage, lambda data: data[:SEGMENT] + data[2 * SEGMENT :])
    assert outcome(stage) == "broken"


@pytest.mark.parametrize("known", [False, True])
def test_an_object_at_anothers_place_is_refused(stage: Stage, known: bool) -> None:
    store(stage, "a", b"mine")
    store(stage, "b", b"another")
    if known:
        stage.content("a")
        stage.content("b")
    resource, data = stage.stored("b")
    put_raw(stage, {"name": "a", "metadata": resource["metadata"]}, data)
    assert outcome(stage) == "refused"
    assert stage.content("b") == b"another"


def test_an_objects_attributes_with_anothers_bytes_are_refused(stage: Stage) -> None:
    store(stage, "a", b"mine")
    store(stage, "b", b"othr")
    in_the_bytes(stage, lambda _: stage.stored("b")[1])
    assert outcome(stage) == "refused"


def test_an_answer_that_describes_another_object_is_an_error(stage: Stage) -> None:
    store(stage, "a", b"mine")
    store(stage, "b", b"another")

    stage.restart()
    stage.upstream.before = lambda asked: stage.ask_endpoint("GET", asked.target.replace("/o/a", "/o/b"))
    for target in ("/storage/v1/b/vault/o/a", "/storage/v1/b/vault/o/a?alt=media"):
        response = stage.ask("GET", target)
        assert response.status == 503
        body_of(response)


ENTRIES = ("version", "kek", "kek-version", "session-key", "object-key", "header", "sums")


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("value", [None, "", "garbled", "AAAA"], ids=["removed", "emptied", "garbled", "zeros"])
def test_an_entry_of_the_envelope_that_was_touched_never_gives_wrong_bytes(
    stage: Stage, entry: str, value: str | None
) -> None:
    store(stage, "a", DATA)
    stage.content("a")
    changed = {"metadata": {f"gcsproxy-{entry}": value}}
    document(stage.ask_endpoint("PATCH", "/storage/v1/b/vault/o/a", changed))
    if entry == "sums" and value is None:
        # Without its checksum it is still authenticated.
        assert stage.content("a") == DATA
        return
    assert outcome(stage) == "refused"
    stage.restart()
    assert outcome(stage) == "refused"


@pytest.mark.parametrize("entry", [*ENTRIES, "everything"])
def test_an_entry_of_another_objects_envelope_never_gives_wrong_bytes(stage: Stage, entry: str) -> None:
    other = store(stage, "b", DATA[::-1])["metadata"]
    stage.clock.advance(1000)
    store(stage, "a", DATA)
    taken = other if entry == "everything" else {f"gcsproxy-{entry}": other[f"gcsproxy-{entry}"]}
    document(stage.ask_endpoint("PATCH", "/storage/v1/b/vault/o/a", {"metadata": taken}))
    if entry in ("version", "kek", "kek-version"):
        assert stage.content("a") == DATA
    else:
        assert outcome(stage) == "refused"


def test_an_object_without_its_envelope_is_plaintext_and_so_refused(stage: Stage) -> None:
    store(stage, "a", DATA)
    document(stage.ask_endpoint("PATCH", "/storage/v1/b/vault/o/a", {"metadata": None}))
    assert outcome(stage) == "refused"


def test_another_keyring_opens_nothing(stage: Stage) -> None:
    store(stage, "a", DATA)
    stage.keyring_file.unlink()
    keyring.create(stage.keyring_file, KEY)
    stage.restart()
    response = stage.get("a")
    assert response.status == 403
    body_of(response)
    response = stage.ask("GET", "/storage/v1/b/vault/o/a")
    assert response.status == 403
    body_of(response)


def test_no_refusal_and_no_log_line_holds_a_key_a_token_or_a_body(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    secret = os.urandom(24).hex()
    resource = store(stage, "a", secret.encode() * 20)
    in_the_bytes(stage, flipped(60))
    headers = [("Authorization", "Bearer tell-nobody")]
    said = body_of(stage.get("a", headers=headers))
    document(stage.ask_endpoint("PATCH", "/storage/v1/b/vault/o/a", {"metadata": {"gcsproxy-object-key": "AAAA"}}))
    said += body_of(stage.get("a", headers=headers))
    text = said.decode() + caplog.text
    assert "vault" in text
    for hidden in ("tell-nobody", secret, resource["metadata"]["gcsproxy-session-key"], "AAAA"):
        assert hidden not in text


def test_tampering_is_told_in_the_log(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    store(stage, "a", DATA)
    in_the_bytes(stage, flipped(60))
    body_of(stage.get("a"))
    assert "segment 0 was changed" in caplog.text
