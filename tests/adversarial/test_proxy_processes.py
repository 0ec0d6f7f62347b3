"""The proxy's several processes, for real: they share the work, live and die together, and lose no upload."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.support.attacked_proxy import MARK, UPLOAD, URL, AttackedProxy, Seen, attacked, content
from tests.support.proxy_processes import connections, gone, of_each
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedProxy]:
    with attacked(tmp_path_factory.mktemp("processes"), GCS_PROXY_PROCESSES="3") as proxy:
        yield proxy


@pytest.fixture
def proxy(started: AttackedProxy) -> Iterator[AttackedProxy]:
    started.seen.clear()
    yield started
    started.watch = lambda seen, size: None
    if started.process is None or started.process.poll() is not None:
        started.start()
    assert not started.in_the_clear()


@contextlib.contextmanager
def at_hand(proxy: AttackedProxy, names: list[str]) -> Iterator[None]:
    """Uploads of these names, each on a connection of its own, all begun at once and at work until the block ends."""
    arrived, release = threading.Barrier(len(names) + 1), threading.Event()
    waiting = set(names)

    def watch(seen: Seen, size: int) -> None:
        for name in waiting & {seen.line.rpartition("name=")[2].partition("&")[0]}:
            waiting.discard(name)
            arrived.wait(60)
            release.wait(60)

    def put(name: str) -> None:
        with proxy.requests() as session:
            session.post(UPLOAD, params={"uploadType": "media", "name": name}, data=MARK, timeout=60)

    proxy.watch = watch
    threads = [threading.Thread(target=put, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    try:
        arrived.wait(60)
        yield
    finally:
        release.set()
        for thread in threads:
            thread.join()


def test_as_many_serve_as_were_asked_for_and_the_first_holds_the_address_alone(proxy: AttackedProxy) -> None:
    first, *serving = proxy.processes
    assert len(serving) == 3
    until(lambda: [connections(proxy, process) for process in (first, *serving)] == [1, 0, 0, 0])


def test_connections_that_come_together_are_spread_evenly_whoever_had_many_before(tmp_path: Path) -> None:
    with attacked(tmp_path, GCS_PROXY_PROCESSES="3") as proxy:
        with at_hand(proxy, ["early-0", "early-1"]):
            assert sorted(of_each(proxy)) == [0, 1, 1]
            # The third one, which has the least to do, gets most of these.
            for _ in range(20):
                with proxy.requests() as session:
                    session.get(f"{URL}/vault/nothing", timeout=20)
        until(lambda: of_each(proxy) == [0, 0, 0])
        with at_hand(proxy, [f"even-{number}" for number in range(6)]):
            assert of_each(proxy) == [2, 2, 2]


def test_every_chunk_on_a_connection_of_its_own_makes_one_object(proxy: AttackedProxy) -> None:
    data, chunk = content(5 * MIB + 3, 1), 300_000
    begun = proxy.requests().post(UPLOAD, params={"uploadType": "resumable", "name": "wandering"}, json={}, timeout=20)
    target, at, answer = begun.headers["Location"], 0, begun
    # All the others stay open, so no two chunks need be with the same process.
    sessions = []
    while at < len(data):
        end = min(len(data), at + chunk)
        sessions.append(proxy.requests())
        headers = {"Content-Range": f"bytes {at}-{end - 1}/{len(data)}"}
        answer = sessions[-1].put(target, data=data[at:end], headers=headers, timeout=20)
        assert answer.status_code in (200, 308), answer.text
        if answer.status_code == 308:
            assert answer.headers["Range"] == f"bytes=0-{end - 1}"
        at = end
    assert answer.json()["size"] == str(len(data))
    for session in sessions[:4]:
        again = session.put(target, headers={"Content-Range": f"bytes */{len(data)}"}, timeout=20)
        assert again.json()["crc32c"] == answer.json()["crc32c"]
        assert session.get(f"{URL}/vault/wandering", timeout=20).content == data
    # They went to all of the processes.
    assert min(of_each(proxy)) >= 2


def test_where_one_process_is_killed_all_end_and_the_upload_goes_on_with_the_next_proxy(proxy: AttackedProxy) -> None:
    assert proxy.process is not None
    data = content(3 * MIB, 2)
    begun = proxy.requests().post(UPLOAD, params={"uploadType": "resumable", "name": "orphan"}, json={}, timeout=20)
    target = begun.headers["Location"]
    proxy.requests().put(target, data=data[:MIB], headers={"Content-Range": f"bytes 0-{MIB - 1}/*"}, timeout=20)
    processes = proxy.processes

    os.kill(processes[2], signal.SIGKILL)

    assert proxy.process.wait(60) == 1
    until(lambda: all(map(gone, processes)))
    assert f"process {processes[2]} of the proxy ended unexpectedly (-9); stopping all" in proxy.log.read_text()
    proxy.start()
    asked = proxy.requests().put(target, headers={"Content-Range": "bytes */*"}, timeout=20)
    at = int(asked.headers["Range"].rpartition("-")[2]) + 1
    assert 0 < at <= MIB
    headers = {"Content-Range": f"bytes {at}-{len(data) - 1}/{len(data)}"}
    assert proxy.requests().put(target, data=data[at:], headers=headers, timeout=20).status_code == 200
    assert proxy.requests().get(f"{URL}/vault/orphan", timeout=20).content == data


def test_where_the_first_is_killed_the_others_are_gone_at_once_in_the_middle_of_their_work(
    proxy: AttackedProxy,
) -> None:
    data = content(12 * MIB, 3)
    killed: list[list[int]] = []
    ended: list[float] = []

    def watch(seen: Seen, size: int) -> None:
        if not killed and seen.request.method == "PUT" and size > MIB:
            killed.append(proxy.processes)
            began = time.monotonic()
            proxy.kill()
            until(lambda: all(map(gone, killed[0])))
            ended.append(time.monotonic() - began)

    proxy.watch = watch
    with pytest.raises(requests.ConnectionError):
        proxy.requests().post(UPLOAD, params={"uploadType": "media", "name": "cut"}, data=data, timeout=30)
    until(lambda: len(ended) == 1)
    # They do not use the grace that requests have where a proxy is told to end.
    assert ended[0] < 8.0
    proxy.start()
    assert proxy.requests().get(f"{URL}/vault/cut", timeout=20).status_code == 404


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_told_to_end_it_answers_the_request_at_hand_and_leaves_no_process(proxy: AttackedProxy, number: int) -> None:
    assert proxy.process is not None
    data, processes = content(12 * MIB, 4), proxy.processes
    told: list[int] = []

    def watch(seen: Seen, size: int) -> None:
        if not told and seen.request.method == "PUT" and size > MIB:
            told.append(size)
            # As a terminal does it: to all of them.
            for process in processes if number == signal.SIGINT else processes[:1]:
                with contextlib.suppress(ProcessLookupError):  # the first one has told it to end
                    os.kill(process, number)
            time.sleep(0.3)

    proxy.watch = watch
    name = f"last-{number}"
    answer = proxy.requests().post(UPLOAD, params={"uploadType": "media", "name": name}, data=data, timeout=30)
    assert answer.status_code == 200, answer.text
    assert proxy.process.wait(60) == 0
    assert all(map(gone, processes))
    proxy.start()
    assert proxy.requests().get(f"{URL}/vault/{name}", timeout=20).content == data
