"""A cache of a list, held against an API server whose watches break and whose history is cut."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.emulators.kubernetes.apiserver import ApiServer
from bastion.emulators.kubernetes.apiserver.faults import Fault
from bastion.emulators.kubernetes.client import ApiClient, ApiError, Informer, Obj, Unreachable, informer
from tests.support.waiting import until

_MAPS = "/api/v1/namespaces/default/configmaps"


def _map(name: str, **data: str) -> Obj:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path / "state") as server:
        yield server


@pytest.fixture
def client(server: ApiServer) -> Iterator[ApiClient]:
    client = ApiClient.connect(server.address)
    yield client
    client.close()


class _Seen:
    """What an informer reports, and how often the server was asked for a list or a watch."""

    def __init__(self, server: ApiServer, client: ApiClient) -> None:
        self.changes: list[tuple[str | None, str | None]] = []
        self.lists = self.watches = 0
        self.refused = 0
        self._lock = threading.Lock()
        server.faults.plan(self._ask)
        self.informer = Informer(client, _MAPS, on_change=self._changed)

    def _ask(self, method: str, path: str) -> Fault | None:
        with self._lock:
            if method == "GET" and path.startswith(_MAPS + "?"):
                if "watch=true" in path:
                    self.watches += 1
                    if self.refused:
                        self.refused -= 1
                        return Fault(refuse=429, retry_after=0)
                else:
                    self.lists += 1
        return None

    def _changed(self, old: Obj | None, new: Obj | None) -> None:
        before, after = (None if obj is None else obj["data"]["n"] for obj in (old, new))
        self.changes.append((before, after))


@pytest.fixture
def seen(server: ApiServer, client: ApiClient) -> Iterator[_Seen]:
    seen = _Seen(server, client)
    yield seen
    seen.informer.stop()


def _start(seen: _Seen) -> None:
    seen.informer.start()
    assert seen.informer.wait_synced(20)
    until(lambda: seen.watches == 1, 20)


def test_it_holds_what_was_there_and_what_changes(client: ApiClient, seen: _Seen) -> None:
    client.create(_MAPS, _map("a", n="1"))
    _start(seen)
    assert seen.changes == [(None, "1")]
    client.create(_MAPS, _map("b", n="2"))
    client.patch(f"{_MAPS}/a", {"data": {"n": "3"}})
    client.delete(f"{_MAPS}/b")
    until(lambda: len(seen.changes) == 4, 20)
    assert seen.changes[1:] == [(None, "2"), ("1", "3"), ("2", None)]
    assert list(seen.informer.items()) == [("default", "a")]
    found = seen.informer.get("default", "a")
    assert found is not None
    assert (found["kind"], found["data"]) == ("ConfigMap", {"n": "3"})


def test_a_cut_watch_resumes_without_another_list(server: ApiServer, client: ApiClient, seen: _Seen) -> None:
    _start(seen)
    server.cut_watches()
    client.create(_MAPS, _map("a", n="1"))
    until(lambda: seen.changes == [(None, "1")], 20)
    assert seen.lists == 1


def test_after_a_lost_history_one_list_shows_the_deletions(server: ApiServer, client: ApiClient, seen: _Seen) -> None:
    client.create(_MAPS, _map("a", n="1"))
    client.create(_MAPS, _map("b", n="2"))
    _start(seen)
    seen.refused = 3
    server.cut_watches()
    client.delete(f"{_MAPS}/a")
    client.create(_MAPS, _map("c", n="3"))
    server.expire_history()
    until(lambda: list(seen.informer.items()) == [("default", "b"), ("default", "c")], 20)
    until(lambda: seen.changes[2:] == [(None, "3"), ("1", None)], 20)
    assert seen.lists == 2


def test_an_own_write_is_there_at_once_and_no_older_event_takes_it_back(client: ApiClient, seen: _Seen) -> None:
    first = client.create(_MAPS, _map("a", n="1"))
    _start(seen)
    second = client.patch(f"{_MAPS}/a", {"data": {"n": "2"}})
    seen.informer.learn(second)
    assert seen.informer.get("default", "a") == second
    seen.informer.learn(first)
    assert seen.informer.get("default", "a") == second
    client.delete(f"{_MAPS}/a")
    until(lambda: seen.informer.get("default", "a") is None, 20)
    seen.informer.learn(second)
    assert seen.informer.get("default", "a") is None
    assert seen.changes == [(None, "1"), ("1", "2"), ("2", None)]


def test_a_resync_shows_what_nobody_knows_of(client: ApiClient, seen: _Seen) -> None:
    _start(seen)
    for number in range(5):
        client.create(_MAPS, _map(f"m{number}", n=str(number)))
        assert seen.informer.resync(20)
        assert ("default", f"m{number}") in seen.informer.items()
    assert seen.lists == 6
    assert seen.changes == [(None, str(number)) for number in range(5)]


def test_a_list_comes_in_pages(client: ApiClient, seen: _Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "_PAGE", 2)
    for name in "abcde":
        client.create(_MAPS, _map(name, n=name))
    _start(seen)
    assert sorted(name for _, name in seen.informer.items()) == list("abcde")
    assert seen.lists == 3


def test_a_refusal_has_the_words_of_the_server(client: ApiClient) -> None:
    client.create(_MAPS, _map("a"))
    with pytest.raises(ApiError) as raised:
        client.create(_MAPS, _map("a"))
    assert (raised.value.code, raised.value.reason) == (409, "AlreadyExists")
    assert raised.value.message == 'configmaps "a" already exists'


def test_a_lost_reply_is_told_from_a_refusal(server: ApiServer, client: ApiClient) -> None:
    client.get("/version")
    server.faults.plan(lambda method, _: Fault(cut_reply=True) if method == "POST" else None)
    with pytest.raises(Unreachable) as raised:
        client.create(_MAPS, _map("a"))
    assert raised.value.code == 0
    # It was carried out, and another connection serves.
    assert client.get(f"{_MAPS}/a")["metadata"]["name"] == "a"


def test_a_server_that_is_gone_is_named(server: ApiServer, client: ApiClient) -> None:
    address = server.address.server.removeprefix("https://")
    server.close()
    with contextlib.suppress(Unreachable):
        client.get("/version")
    with pytest.raises(Unreachable, match=f"the API server {address} did not answer GET"):
        client.get("/version")
