"""Keys of objects: bound to their place, under sessions of five minutes, and one call for however many threads."""

from __future__ import annotations

import sys
import threading
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from bastion.core.errors import BastionError, EnvelopeBroken, KmsError, KmsRefused, KmsUnavailable
from bastion.proxy.sealed import envelopes as module
from bastion.proxy.sealed.envelope import Envelope
from bastion.proxy.sealed.envelopes import SESSION_SECONDS, Envelopes
from bastion.proxy.sealed.single_flight import SingleFlight
from bastion.testing.manual_clock import ManualClock
from bastion.testing.memory_kms import MemoryKms
from tests.support.waiting import until

KEK = "projects/p/locations/global/keyRings/r/cryptoKeys/k"
OTHER = "projects/p/locations/global/keyRings/r/cryptoKeys/other"


class Desk:
    """A key service, a clock, and envelopes of any number of processes."""

    def __init__(self) -> None:
        self.kms = MemoryKms(KEK, OTHER)
        self.clock = ManualClock()
        self.envelopes = self.another()

    def another(self) -> Envelopes:
        """Those of a process that has just started."""
        return Envelopes(self.kms, clock=self.clock)

    def calls(self) -> list[str]:
        """What was asked since the last look."""
        seen = [call.split()[0] for call in self.kms.calls]
        self.kms.calls.clear()
        return seen


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_what_one_process_made_another_opens(desk: Desk) -> None:
    envelope, key = desk.envelopes.new(KEK, "b", "a/1")
    assert len(key) == 32
    found = Envelope.from_metadata(envelope.to_metadata())
    assert found is not None
    assert desk.another().open(found, "b", "a/1") == key


def test_every_object_has_a_key_of_its_own(desk: Desk) -> None:
    made = [desk.envelopes.new(KEK, "b", "a") for _ in range(20)]
    assert len({key for _, key in made}) == 20
    assert len({envelope.header for envelope, _ in made}) == 20
    assert len({envelope.wrapped_object for envelope, _ in made}) == 20


@pytest.mark.parametrize(
    ("bucket", "name"),
    [("b", "a/2"), ("c", "a/1"), ("b", "a/"), ("ba", "/1"), ("b\0a", "1"), ("", "ba/1"), ("b", "A/1")],
    ids=["name", "bucket", "cut-name", "moved-edge", "joined", "empty-bucket", "case"],
)
def test_an_envelope_opens_nowhere_but_at_its_object(desk: Desk, bucket: str, name: str) -> None:
    envelope, _ = desk.envelopes.new(KEK, "b", "a/1")
    with pytest.raises(EnvelopeBroken, match="another object"):
        desk.envelopes.open(envelope, bucket, name)


def test_swapped_parts_of_two_envelopes_are_refused(desk: Desk) -> None:
    first, _ = desk.envelopes.new(KEK, "b", "first")
    desk.clock.advance(SESSION_SECONDS)
    second, _ = desk.envelopes.new(KEK, "b", "second")
    assert first.wrapped_session != second.wrapped_session
    for swapped in (
        replace(first, wrapped_object=second.wrapped_object),
        replace(first, wrapped_session=second.wrapped_session),
    ):
        with pytest.raises(EnvelopeBroken):
            desk.envelopes.open(swapped, "b", "first")


@pytest.mark.parametrize("data", [b"", bytes(5), bytes(12), bytes(27), bytes(60)])
def test_a_wrapped_key_that_is_none_is_refused(desk: Desk, data: bytes) -> None:
    envelope, _ = desk.envelopes.new(KEK, "b", "a")
    with pytest.raises(EnvelopeBroken):
        desk.envelopes.open(replace(envelope, wrapped_object=data), "b", "a")


def test_a_session_key_that_was_changed_is_refused_by_the_key_service(desk: Desk) -> None:
    envelope, _ = desk.envelopes.new(KEK, "b", "a")
    with pytest.raises(KmsRefused):
        desk.envelopes.open(replace(envelope, wrapped_session=bytes(60)), "b", "a")


def test_what_was_wrapped_for_another_purpose_is_no_session_key(desk: Desk) -> None:
    envelope, _ = desk.envelopes.new(KEK, "b", "a")
    foreign = desk.kms.wrap(KEK, bytes(32), associated=b"another purpose")
    with pytest.raises(KmsRefused):
        desk.envelopes.open(replace(envelope, wrapped_session=foreign.data), "b", "a")
    short = desk.kms.wrap(KEK, bytes(16), associated=module.SESSION_CONTEXT)
    with pytest.raises(EnvelopeBroken, match="did not wrap a session key"):
        desk.envelopes.open(replace(envelope, wrapped_session=short.data), "b", "a")


def test_a_session_wraps_for_five_minutes_and_no_longer(desk: Desk) -> None:
    sessions = []
    for _ in range(4):
        sessions.append(desk.envelopes.new(KEK, "b", "a")[0].wrapped_session)
        desk.clock.advance(SESSION_SECONDS / 2)
    assert sessions[0] == sessions[1] != sessions[2] == sessions[3]
    assert desk.calls() == ["wrap", "wrap"]
    assert SESSION_SECONDS == 300


def test_an_opened_session_is_kept_for_five_minutes_and_no_longer(desk: Desk) -> None:
    made = [desk.envelopes.new(KEK, "b", str(index)) for index in range(3)]
    reader = desk.another()
    desk.calls()
    for index, (envelope, key) in enumerate(made):
        assert reader.open(envelope, "b", str(index)) == key
    assert desk.calls() == ["unwrap"]
    desk.clock.advance(SESSION_SECONDS)
    reader.open(made[0][0], "b", "0")
    assert desk.calls() == ["unwrap"]


def test_reading_what_was_just_written_asks_nothing(desk: Desk) -> None:
    envelope, _ = desk.envelopes.new(KEK, "b", "a")
    desk.calls()
    desk.envelopes.open(envelope, "b", "a")
    assert desk.calls() == []


def test_keys_have_sessions_of_their_own(desk: Desk) -> None:
    first, _ = desk.envelopes.new(KEK, "b", "a")
    second, _ = desk.envelopes.new(OTHER, "b", "a")
    assert (first.kek, second.kek) == (KEK, OTHER)
    with pytest.raises(KmsRefused):
        desk.another().open(replace(first, kek=OTHER), "b", "a")


def test_only_so_many_sessions_are_kept(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SESSIONS_KEPT", 2)
    made = [desk.another().new(KEK, "b", str(index))[0] for index in range(3)]
    reader = desk.another()
    desk.calls()
    for index in (0, 1, 0, 2, 0, 1):
        reader.open(made[index], "b", str(index))
    # The one in the middle was the least recently used when the third came.
    assert len(desk.calls()) == 4


def _waiting_for_another() -> int:
    """How many threads wait for the answer to another one's call."""
    stacks = [{frame.f_code for frame, _ in traceback.walk_stack(frame)} for frame in sys._current_frames().values()]
    return sum({SingleFlight.get.__code__, Future.result.__code__} <= codes for codes in stacks)


@pytest.mark.parametrize("fails", [False, True], ids=["answered", "failing"])
def test_many_threads_that_want_a_session_make_one_call(desk: Desk, fails: bool) -> None:
    threads = 16
    started = threading.Barrier(threads)
    envelope, key = desk.envelopes.new(KEK, "b", "a")
    reader = desk.another()
    desk.kms.calls.clear()
    desk.kms.gate.clear()
    desk.kms.fails = KmsUnavailable("it does not answer; try again") if fails else None

    def open_one() -> bytes | str:
        started.wait()
        try:
            return reader.open(envelope, "b", "a")
        except KmsUnavailable as error:
            return str(error)

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(open_one) for _ in range(threads)]
        until(lambda: len(desk.kms.calls) == 1)
        # One that came later would find the value, or ask once more.
        until(lambda: _waiting_for_another() == threads - 1)
        desk.kms.gate.set()
        answers = {future.result(20) for future in futures}
    assert answers == ({"it does not answer; try again"} if fails else {key})
    assert desk.calls() == ["unwrap"]


def test_a_slow_call_for_one_key_holds_up_nobody_else(desk: Desk) -> None:
    desk.envelopes.new(OTHER, "b", "a")
    desk.kms.calls.clear()
    desk.kms.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(desk.envelopes.new, KEK, "b", "a")
        until(lambda: len(desk.kms.calls) == 1)
        desk.envelopes.new(OTHER, "b", "b")
        assert not slow.done()
        desk.kms.gate.set()
        slow.result(20)


@pytest.mark.parametrize(
    "error",
    [KmsUnavailable("it does not answer; try again"), KmsRefused("no permission; grant it")],
    ids=["unavailable", "refused"],
)
def test_what_the_key_service_says_goes_to_the_caller_and_is_not_kept(desk: Desk, error: KmsError) -> None:
    envelope, key = desk.envelopes.new(KEK, "b", "a")
    reader = desk.another()
    desk.kms.fails = error
    with pytest.raises(type(error), match=str(error)):
        reader.open(envelope, "b", "a")
    with pytest.raises(type(error), match=str(error)):
        reader.new(KEK, "b", "a")
    with pytest.raises(type(error), match=str(error)):
        reader.rewrapped(envelope, "b", "a", KEK)
    with pytest.raises(type(error), match=str(error)):
        reader.moved(envelope, ("b", "a"), ("b", "c"), KEK)
    desk.kms.fails = None
    assert reader.open(envelope, "b", "a") == key


def test_a_key_service_that_is_down_hurts_nobody_who_has_a_session(desk: Desk) -> None:
    desk.envelopes.new(KEK, "b", "a")
    desk.kms.fails = KmsUnavailable("it does not answer; try again")
    desk.clock.advance(SESSION_SECONDS - 1)
    desk.envelopes.new(KEK, "b", "a")
    desk.clock.advance(1)
    with pytest.raises(KmsUnavailable):
        desk.envelopes.new(KEK, "b", "a")


def test_a_copy_opens_at_its_own_place_only(desk: Desk) -> None:
    source, key = desk.envelopes.new(KEK, "b", "a")
    source = replace(desk.envelopes.with_sums(source, key, 77), content_encoding="gzip")
    copy = desk.another().moved(source, ("b", "a"), ("c", "d"), OTHER)
    assert copy.kek == OTHER
    assert copy.header == source.header, "the content is the same, byte for byte"
    assert copy.content_encoding == "gzip"
    reader = desk.another()
    assert reader.open(copy, "c", "d") == key
    assert reader.crc32c(copy, key) == 77
    with pytest.raises(EnvelopeBroken):
        reader.open(copy, "b", "a")
    with pytest.raises(EnvelopeBroken):
        desk.envelopes.moved(source, ("b", "x"), ("c", "d"), KEK)


def test_sums_are_sealed_and_belong_to_one_object(desk: Desk) -> None:
    first, key = desk.envelopes.new(KEK, "b", "a")
    second, other_key = desk.envelopes.new(KEK, "b", "b")
    assert desk.envelopes.crc32c(first, key) is None
    for crc32c in (0, 0xDEADBEEF, 0xFFFFFFFF):
        summed = desk.envelopes.with_sums(first, key, crc32c)
        assert desk.envelopes.crc32c(summed, key) == crc32c
        assert crc32c.to_bytes(4, "big") not in summed.sums
    again = desk.envelopes.with_sums(first, key, 5)
    assert again.sums != desk.envelopes.with_sums(first, key, 5).sums, "equal sums must not look equal"
    with pytest.raises(EnvelopeBroken, match="checksums"):
        desk.envelopes.crc32c(replace(second, sums=again.sums), other_key)
    for broken in (again.sums[:-1], again.sums[:7], again.sums + b"\0", bytes(32)):
        with pytest.raises(EnvelopeBroken, match="checksums"):
            desk.envelopes.crc32c(replace(first, sums=broken), key)


def test_after_a_rotation_the_old_opens_and_the_new_is_under_the_primary(desk: Desk) -> None:
    old, key = desk.envelopes.new(KEK, "b", "a")
    desk.kms.rotate(KEK)
    later = desk.another()
    assert later.open(old, "b", "a") == key
    assert later.new(KEK, "b", "a")[0].kek_version == "2"
    desk.clock.advance(SESSION_SECONDS)
    assert desk.envelopes.new(KEK, "b", "a")[0].kek_version == "2"


def test_rewrapping_brings_an_envelope_under_the_primary_once(desk: Desk) -> None:
    old, key = desk.envelopes.new(KEK, "b", "a")
    old = replace(desk.envelopes.with_sums(old, key, 77), content_encoding="gzip")
    assert desk.envelopes.rewrapped(old, "b", "a", KEK) is None
    desk.kms.rotate(KEK)
    desk.clock.advance(SESSION_SECONDS - 1)  # the session of before the rotation is still good for new objects
    worker = desk.another()
    worker.new(KEK, "b", "x")
    fresh = worker.rewrapped(old, "b", "a", KEK)
    assert fresh is not None
    assert (fresh.kek, fresh.kek_version) == (KEK, "2")
    assert (fresh.header, fresh.sums, fresh.content_encoding) == (old.header, old.sums, "gzip")
    assert worker.rewrapped(fresh, "b", "a", KEK) is None
    desk.kms.destroy(KEK, "1")
    assert desk.another().open(fresh, "b", "a") == key
    with pytest.raises(KmsRefused, match="destroyed"):
        desk.another().open(old, "b", "a")


def test_rewrapping_drops_a_session_from_before_the_rotation(desk: Desk) -> None:
    old, _ = desk.envelopes.new(KEK, "b", "a")
    desk.kms.rotate(KEK)
    fresh = desk.envelopes.rewrapped(old, "b", "a", KEK)
    assert fresh is not None
    assert fresh.kek_version == "2"


def test_rewrapping_many_objects_asks_for_the_primary_once(desk: Desk) -> None:
    made = [desk.envelopes.new(KEK, "b", str(index))[0] for index in range(10)]
    desk.kms.rotate(KEK)
    worker = desk.another()
    desk.calls()
    for index, envelope in enumerate(made):
        assert worker.rewrapped(envelope, "b", str(index), KEK)
    assert sorted(desk.calls()) == ["primary", "unwrap", "wrap"]


def test_rewrapping_moves_an_object_under_another_key(desk: Desk) -> None:
    old, key = desk.envelopes.new(KEK, "b", "a")
    fresh = desk.envelopes.rewrapped(old, "b", "a", OTHER)
    assert fresh is not None
    assert fresh.kek == OTHER
    assert desk.another().open(fresh, "b", "a") == key


def test_a_broken_envelope_is_not_rewrapped(desk: Desk) -> None:
    old, _ = desk.envelopes.new(KEK, "b", "a")
    desk.kms.rotate(KEK)
    with pytest.raises(EnvelopeBroken):
        desk.envelopes.rewrapped(old, "b", "elsewhere", KEK)


def test_a_key_that_is_not_trusted_is_never_used(desk: Desk) -> None:
    """Else who may write to the bucket brings objects of their own, under a key of their own."""
    forged, _ = desk.envelopes.new(OTHER, "b", "a")
    good, _ = desk.envelopes.new(KEK, "b", "a")
    careful = Envelopes(desk.kms, clock=desk.clock, trusted=[KEK])
    desk.calls()
    attempts = (
        lambda: careful.open(forged, "b", "a"),
        lambda: careful.new(OTHER, "b", "a"),
        lambda: careful.moved(forged, ("b", "a"), ("b", "c"), KEK),
        lambda: careful.moved(good, ("b", "a"), ("b", "c"), OTHER),
        lambda: careful.rewrapped(forged, "b", "a", KEK),
        lambda: careful.rewrapped(good, "b", "a", OTHER),
    )
    for attempt in attempts:
        with pytest.raises(KmsRefused, match="is not a key of this proxy"):
            attempt()
    assert not [call for call in desk.kms.calls if OTHER in call]


def test_nothing_that_is_shown_or_raised_holds_a_key(desk: Desk) -> None:
    envelopes = Envelopes(desk.kms, clock=desk.clock, random=lambda size: b"S" * size)
    envelope, _ = envelopes.new(KEK, "b", "a")
    shown = [repr(envelopes), repr(envelope), repr(vars(envelopes)["_made"]), repr(envelopes._session(KEK))]
    for attempt in (
        lambda: envelopes.open(envelope, "b", "c"),
        lambda: envelopes.open(replace(envelope, wrapped_session=b"x"), "b", "a"),
        lambda: envelopes.crc32c(replace(envelope, sums=b"x"), b"S" * 32),
    ):
        with pytest.raises(BastionError) as raised:
            attempt()
        shown += [repr(raised.value), repr(raised.value.__context__)]
    assert not [text for text in shown if "SSSS" in text or "U1NT" in text]
