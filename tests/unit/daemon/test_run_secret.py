"""The secret of the runs: made once, read by every later daemon, and never guessed."""

from __future__ import annotations

import pytest

from bastion.client.daemon_health import DaemonHealth
from bastion.core.bucket import keys
from bastion.core.errors import AccessDenied, BastionError, InvalidDocument, PreconditionFailed, StoreUnavailable
from bastion.core.run_keys import RunKeys
from bastion.daemon.run_secret import read_run_keys
from bastion.testing.cluster import Cluster
from bastion.testing.faulty_store import Fault, FaultyStore
from bastion.testing.memory_store import MemoryStore

SECRET = bytes(range(32))


def read(store, secret: bytes = SECRET) -> RunKeys:
    return read_run_keys(store, shown="gs://private/b-bastion", draw=lambda size: secret[:size])


def key(run_keys: RunKeys) -> str:
    return run_keys.of("abcdefghij-1", "token").text


def test_the_first_daemon_makes_it_and_every_later_one_reads_it() -> None:
    store = MemoryStore()
    first = read(store)
    assert store.get(keys.RUN_SECRET).data == SECRET.hex().encode() + b"\n"
    assert key(first) == key(read(store, b"x" * 32)) == key(RunKeys(SECRET))


def test_of_two_daemons_that_start_at_once_both_use_the_one_that_was_stored() -> None:
    store = MemoryStore()
    put = store.put

    def late(name: str, data: bytes, *, generation: int):  # type: ignore[no-untyped-def]
        put(name, b"55" * 32, generation=0)
        raise PreconditionFailed("another daemon was first")

    store.put = late  # type: ignore[method-assign]
    assert key(read(store)) == key(RunKeys(b"\x55" * 32))


@pytest.mark.parametrize("data", [b"", b"short", b"zz" * 32, b"ab" * 31, b"ab" * 33, b"\xff" * 64, b"ab" * 5000])
def test_what_no_daemon_made_is_refused_and_not_replaced_or_shown(data: bytes) -> None:
    store = MemoryStore()
    store.put(keys.RUN_SECRET, data, generation=0)
    with pytest.raises(InvalidDocument) as caught:
        read(store)
    assert "gs://private/b-bastion/secrets/runs is not a secret that a daemon made" in str(caught.value)
    assert not data or data.decode("latin-1") not in str(caught.value)
    assert store.get(keys.RUN_SECRET).data == data


@pytest.mark.parametrize("method", ["get", "put"])
def test_a_missing_right_is_named(method: str) -> None:
    store = MemoryStore()

    def denied(*_: object, **__: object) -> None:
        raise AccessDenied("the permission is not granted")

    setattr(store, method, denied)
    with pytest.raises(AccessDenied, match="grant the daemon reader and creator on gs://private/b-bastion/secrets/"):
        read(store)


@pytest.mark.parametrize("fault", Fault)
def test_a_lost_request_or_reply_is_tried_again_with_one_result(fault: Fault) -> None:
    store = FaultyStore(MemoryStore())
    store.fail_next("put", fault=fault)
    with pytest.raises(BastionError):
        read(store)
    assert key(read(store)) == key(read(store, b"x" * 32))


def test_users_are_told_why_a_daemon_that_lives_does_not_act_once_that_lasts() -> None:
    cluster = Cluster()
    cluster.settle(2)
    health = DaemonHealth(cluster.store, cluster.clock, local=True)
    assert health.look() == ""
    cluster.restart_daemon()
    refused = InvalidDocument("secrets/runs is not a secret that a daemon made; restore it")

    def broken() -> RunKeys:
        raise refused

    good = cluster.daemon._read_run_keys
    cluster.daemon._has_keys = False
    cluster.daemon._read_run_keys = broken
    for _ in range(40):
        cluster.step()
    assert health.look() == f"the daemon runs, but cannot act: {refused}"
    cluster.daemon._read_run_keys = good
    for _ in range(40):
        cluster.step()
    assert health.look() == ""


def test_a_daemon_that_cannot_read_it_does_nothing_says_so_and_goes_on_when_it_can() -> None:
    cluster = Cluster()
    answers = [StoreUnavailable("no answer"), AccessDenied("denied")]
    good = cluster.run_keys
    reads = 0

    def now() -> RunKeys:
        nonlocal reads
        reads += 1
        if answers:
            raise answers.pop(0)
        return good

    cluster.daemon._read_run_keys = now
    cluster.submit("job", instance_type="tpu-v4-16")
    for text in ("no answer", "denied"):
        report = cluster.step()
        assert not report.acted
        assert text in report.problems[0]
    assert cluster.slices.created == []
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.settle(10)
    assert reads == 3, "it stays in memory"
