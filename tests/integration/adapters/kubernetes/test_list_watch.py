"""The cache of pods against an emulated API server: requests counted, faults on the way, and its end."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bastion.adapters.kubernetes.list_watch import ListWatch, Pace
from bastion.adapters.system_clock import SystemClock
from bastion.core.errors import CredentialsRefused, ProvisionerUnavailable
from bastion.emulators.kubernetes.apiserver.faults import Fault
from tests.support.cluster_api import PODS, SELECTOR, Cluster, pod, running
from tests.support.scripted_server import serving
from tests.support.waiting import until

pytest.importorskip("kubernetes.config", reason="the extra `kubernetes` is not installed")

QUICK = Pace(backoff=0.02, backoff_max=0.1, short_watch=0.0)
SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Kept:
    """What a provisioner would keep of a pod, about."""

    run: str
    phase: str
    node: str
    uid: str
    labels: tuple[tuple[str, str], ...]


def _kept(item: Mapping[str, Any]) -> Kept:
    labels = item["metadata"].get("labels", {})
    return Kept(
        sys.intern(labels.get("bastion-run", "")),
        sys.intern(item.get("status", {}).get("phase", "")),
        item["spec"].get("nodeName", ""),
        item["metadata"]["uid"],
        tuple((sys.intern(name), value) for name, value in labels.items()),
    )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running(tmp_path) as found:
        yield found


class _Watched:
    """A started list-watch that counts its announcements."""

    def __init__(self, cluster: Cluster, pace: Pace = QUICK, **settings: Any) -> None:
        self.changes = 0
        self.cache = ListWatch(
            cluster.api(**settings),
            PODS,
            label_selector=SELECTOR,
            shrink=_kept,
            clock=SystemClock(),
            on_change=self._changed,
            pace=pace,
        )

    def _changed(self) -> None:
        self.changes += 1

    def __enter__(self) -> _Watched:
        self.cache.start()
        assert self.cache.wait_synced(SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self.cache.close()

    def is_watching(self) -> None:
        """Wait until the server has accepted a watch, which its `cut_watches` then reaches."""
        until(lambda: self.cache._watch is not None, SECONDS)

    def sees(self, *names: str) -> None:
        until(lambda: sorted(self.cache.snapshot()) == sorted(names), SECONDS)


def test_changes_reach_the_cache_and_an_idle_consumer_asks_for_nothing(cluster: Cluster) -> None:
    api = cluster.api()
    api.create(PODS, pod("a"))
    with _Watched(cluster) as watched:
        watched.sees("a")
        api.create(PODS, pod("b"))
        api.create(PODS, pod("foreign", managed="another"))
        watched.sees("a", "b")
        api.patch_labels(f"{PODS}/a", {"bastion-managed": "another"})
        watched.sees("b")
        cluster.requests.clear()
        for _ in range(100):
            watched.cache.snapshot()
        assert cluster.requests == []


def test_a_cut_watch_goes_on_and_sees_what_happened_meanwhile(cluster: Cluster) -> None:
    api = cluster.api()
    api.create(PODS, pod("a"))
    with _Watched(cluster) as watched:
        watched.sees("a")
        watched.is_watching()
        cluster.server.cut_watches()
        api.create(PODS, pod("b"))
        watched.sees("a", "b")
    assert len(cluster.lists()) == 1
    assert len(cluster.watches()) == 2


def test_after_410_one_list_shows_what_is_gone(cluster: Cluster) -> None:
    api = cluster.api()
    for name in ("a", "b"):
        api.create(PODS, pod(name))
    with _Watched(cluster) as watched:
        watched.sees("a", "b")
        watched.is_watching()
        cluster.requests.clear()
        # Nothing of it can be seen through the watch: it is refused until the history is gone.
        refusals = [("watch=1", Fault(refuse=503))] * 1000
        cluster.faults = list(refusals)
        cluster.server.cut_watches()
        until(cluster.watches, SECONDS)
        api.patch_labels(f"{PODS}/a", {"bastion-managed": None})
        cluster.server.expire_history()
        cluster.faults.clear()
        watched.sees("b")
    assert len(cluster.lists()) == 1


@pytest.mark.parametrize("code", [429, 500, 503])
def test_refused_lists_and_watches_are_tried_again(cluster: Cluster, code: int) -> None:
    cluster.api().create(PODS, pod("a"))
    fault = Fault(refuse=code, retry_after=0)
    cluster.faults = [("limit=", fault), ("limit=", fault), ("watch=1", fault), ("watch=1", fault)]
    with _Watched(cluster) as watched:
        watched.sees("a")
        cluster.api().create(PODS, pod("b"))
        watched.sees("a", "b")
    assert (len(cluster.lists()), len(cluster.watches())) == (3, 3)


def test_a_watch_that_the_server_ends_is_renewed_without_a_list(cluster: Cluster) -> None:
    with _Watched(cluster, Pace(watch=1.0)) as watched:
        until(lambda: len(cluster.watches()) >= 3, SECONDS)
        cluster.api().create(PODS, pod("a"))
        watched.sees("a")
    assert len(cluster.lists()) == 1


def test_a_server_that_falls_silent_makes_the_snapshot_refuse(cluster: Cluster) -> None:
    with _Watched(cluster, Pace(stale=0.6, silence=0.3, backoff=0.02, backoff_max=0.1)) as watched:
        # Bookmarks come once a minute here; renewals keep it current.
        until(lambda: len(cluster.watches()) >= 4, SECONDS)
        watched.cache.snapshot()
        cluster.faults = [("watch=1", Fault(refuse=503))] * 1000
        watched.is_watching()
        cluster.server.cut_watches()

        def refused() -> bool:
            try:
                watched.cache.snapshot()
            except ProvisionerUnavailable as error:
                return "not confirmed for" in str(error)
            return False

        until(refused, SECONDS)
        cluster.faults.clear()
        until(lambda: not refused(), SECONDS)


def test_a_token_that_expires_under_a_watch_is_said_in_the_snapshot(cluster: Cluster) -> None:
    with _Watched(cluster, Pace(stale=0.3, backoff=0.02, backoff_max=0.1)) as watched:
        watched.is_watching()
        token = Path(cluster.settings().token_file)
        token.write_text("expired")
        cluster.server.cut_watches()

        def refused() -> bool:
            try:
                watched.cache.snapshot()
            except CredentialsRefused:
                return True
            except ProvisionerUnavailable:
                pass
            return False

        until(refused, SECONDS)


def test_closing_ends_the_thread_while_it_waits_for_events(cluster: Cluster) -> None:
    before = set(threading.enumerate())
    with _Watched(cluster) as watched:
        watched.is_watching()
    assert [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("watch-")] == []


def test_closing_does_not_wait_for_a_server_that_says_nothing(tmp_path: Path, cluster: Cluster) -> None:
    def silent(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.recv(1)

    with serving(silent) as port:
        watched = _Watched(cluster, server=f"http://127.0.0.1:{port}", request_seconds=0.3)
        watched.cache.start()
        watched.cache.close()
    until(lambda: not any(thread.name.startswith("watch-") for thread in threading.enumerate()), SECONDS)
