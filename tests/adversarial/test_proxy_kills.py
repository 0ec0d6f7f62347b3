"""kill -9 of the proxy at every bad moment, then the same state folder again: an object is whole, or not there."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator

import pytest
import requests
from google.api_core.exceptions import GoogleAPIError
from google.cloud.exceptions import GoogleCloudError
from google.cloud.storage.exceptions import InvalidResponse

from bastion.net.http1 import Request, Response
from tests.support.attacked_proxy import MARK, UPLOAD, URL, Answer, AttackedProxy, Seen, attacked, content

pytestmark = pytest.mark.e2e

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedProxy]:
    with attacked(tmp_path_factory.mktemp("kills")) as proxy:
        yield proxy


@pytest.fixture
def proxy(started: AttackedProxy) -> Iterator[AttackedProxy]:
    started.seen.clear()
    yield started
    started.watch = lambda seen, size: None
    started.wrap = lambda answer: answer
    assert not started.in_the_clear()


def on_arrival(proxy: AttackedProxy, method: str, at: int, act: Callable[[], object], *, nth: int = 1) -> list[str]:
    """Does something once when so many bytes of the nth such request have arrived; returns what it did it to."""
    done: list[str] = []

    def watch(seen: Seen, size: int) -> None:
        alike = [other for other in proxy.seen if other.request.method == method and other.body]
        if not done and seen.request.method == method and size >= at and len(alike) >= nth:
            done.append(seen.line)
            act()

    proxy.watch = watch
    return done


def before_answer(proxy: AttackedProxy, method: str, act: Callable[[], object]) -> list[str]:
    """Does something once when the service has done what such a request asked, and before it says so."""
    done: list[str] = []

    def wrap(answer: Answer) -> Answer:
        def answered(request: Request) -> Response:
            response = answer(request)
            if not done and request.method == method:
                done.append(request.target)
                act()
            return response

        return answered

    proxy.wrap = wrap
    return done


def whole_or_absent(proxy: AttackedProxy, name: str, data: bytes, *, there: bool | None = None) -> None:
    proxy.watch, proxy.wrap = lambda seen, size: None, lambda answer: answer
    answer = proxy.requests().get(f"{URL}/vault/{name}", timeout=30)
    if answer.status_code == 404:
        assert there is not True
        assert all(item != name for item in names(proxy))
        return
    assert answer.status_code == 200, answer.text
    assert answer.content == data
    assert there is not False
    assert name in names(proxy)


def names(proxy: AttackedProxy) -> list[str]:
    listed = proxy.requests().get(f"{URL}/storage/v1/b/vault/o", timeout=30).json()
    return [item["name"] for item in listed.get("items", [])]


@pytest.mark.parametrize(
    ("size", "method", "at", "there"),
    [
        (300_000, "POST", 1, None),  # all of it may have been on its way
        (300_000, "POST", 100_000, None),
        (12 * MIB, "PUT", 1, False),
        (12 * MIB, "PUT", 5 * MIB, None),
        (12 * MIB, "PUT", 12 * MIB - 1, None),
    ],
)
def test_killed_in_an_upload_it_leaves_nothing_that_is_not_whole(
    proxy: AttackedProxy, size: int, method: str, at: int, there: bool | None
) -> None:
    name, data = f"{size}-{at}", content(size, at)
    done = on_arrival(proxy, method, at, proxy.kill)
    killed_in_an_upload(proxy, name, data)
    assert done
    whole_or_absent(proxy, name, data, there=there)


@pytest.mark.parametrize(("size", "method"), [(300_000, "POST"), (9 * MIB, "PUT"), (9 * MIB, "PATCH")])
def test_killed_before_it_could_say_so_an_upload_is_whole(proxy: AttackedProxy, size: int, method: str) -> None:
    name, data = f"ended-{size}-{method}", content(size, 3)
    done = before_answer(proxy, method, proxy.kill)
    killed_in_an_upload(proxy, name, data)
    assert done
    whole_or_absent(proxy, name, data, there=True)


def killed_in_an_upload(proxy: AttackedProxy, name: str, data: bytes) -> None:
    with pytest.raises(requests.ConnectionError):
        proxy.requests().post(UPLOAD, params={"uploadType": "media", "name": name}, data=data, timeout=30)
    proxy.start()


def resumed(session: requests.Session, location: str, data: bytes, chunk: int) -> requests.Response:
    """What a client does that begins with asking; the last answer."""
    for _ in range(40):
        asked = session.put(location, headers={"Content-Range": f"bytes */{len(data)}"}, timeout=30)
        while asked.status_code == 308:
            kept = asked.headers.get("Range")
            start = int(kept.rpartition("-")[2]) + 1 if kept else 0
            end = min(len(data), start + chunk)
            span = {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}
            asked = session.put(location, data=data[start:end], headers=span, timeout=30)
        if asked.status_code != 503:
            return asked
    return asked


@pytest.mark.parametrize("chunk", [MIB, 300_000, 4 * MIB])
@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("moment", ["on the way", "unsaid"])
def test_killed_in_a_chunk_a_resumable_upload_goes_on_after_the_restart(
    proxy: AttackedProxy, chunk: int, nth: int, moment: str
) -> None:
    name, data = f"chunks-{chunk}-{nth}-{moment[:2]}", content(4 * MIB + 77, chunk + nth)
    begun = proxy.requests().post(UPLOAD, params={"uploadType": "resumable", "name": name}, timeout=30)
    location = begun.headers["Location"]
    if moment == "on the way":
        on_arrival(proxy, "PUT", 100, proxy.kill, nth=min(nth, -(-len(data) // chunk)))
    else:
        before_answer(proxy, "PUT", proxy.kill)
    with pytest.raises(requests.ConnectionError):
        resumed(proxy.requests(), location, data, chunk)
    proxy.start()
    proxy.watch, proxy.wrap = lambda seen, size: None, lambda answer: answer

    ended = resumed(proxy.requests(), location, data, chunk)

    assert ended.status_code == 200, ended.text
    assert ended.json()["size"] == str(len(data))
    assert sent_in_one_place(proxy, location) == []
    whole_or_absent(proxy, name, data, there=True)
    assert proxy.requests().put(location, data=b"", timeout=30).status_code in (200, 404, 410)


def sent_in_one_place(proxy: AttackedProxy, location: str) -> list[tuple[bytes, bytes]]:
    """Where different bytes were sent for the same place of one upload: two plaintexts under one key and nonce."""
    upload_id = location.rpartition("upload_id=")[2]
    sent: list[tuple[int, bytes]] = []
    for seen in proxy.seen:
        span = seen.request.headers.get("Content-Range")
        if upload_id in seen.request.target and seen.body and span:
            sent.append((int(span.removeprefix("bytes ").partition("-")[0]), bytes(seen.body)))
    different = []
    for (first, one), (second, other) in itertools.combinations(sent, 2):
        begin, end = max(first, second), min(first + len(one), second + len(other))
        if begin < end and one[begin - first : end - first] != other[begin - second : end - second]:
            different.append((one, other))
    return different


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("moment", ["on the way", "unsaid"])
def test_a_client_that_sends_other_bytes_after_the_restart_never_gets_them_under_the_same_nonces(
    proxy: AttackedProxy, nth: int, moment: str
) -> None:
    name, data, other = f"other-{nth}-{moment[:2]}", content(3 * MIB + 5, nth), content(3 * MIB + 5, nth + 100)
    begun = proxy.requests().post(UPLOAD, params={"uploadType": "resumable", "name": name}, timeout=30)
    location = begun.headers["Location"]
    if moment == "on the way":
        on_arrival(proxy, "PUT", 600_000, proxy.kill, nth=nth)
    else:
        before_answer(proxy, "PUT", proxy.kill)
    with pytest.raises(requests.ConnectionError):
        resumed(proxy.requests(), location, data, MIB)
    proxy.start()
    proxy.watch, proxy.wrap = lambda seen, size: None, lambda answer: answer

    ended = resumed(proxy.requests(), location, other, MIB)

    assert sent_in_one_place(proxy, location) == []
    assert ended.status_code in (200, 404, 410)
    got = proxy.requests().get(f"{URL}/vault/{name}", timeout=30)
    # What the service had already is the old bytes; a client that changes its mind in between gets what it sent when.
    assert got.status_code == (200 if ended.status_code == 200 else 404)
    assert got.status_code == 404 or all(
        part in (data[at : at + 1000], other[at : at + 1000])
        for at in range(0, len(data), 262_144)
        if (part := got.content[at : at + 1000])
    )


@pytest.mark.parametrize("at", [1000, 700_000])
def test_google_cloud_storage_ends_well_or_fails_cleanly_when_the_proxy_is_killed(
    proxy: AttackedProxy, at: int
) -> None:
    name, data = f"google-{at}", content(4 * MIB + 99, at)

    def crash() -> None:
        proxy.kill()
        proxy.start()

    done = on_arrival(proxy, "PUT", at, crash, nth=2)
    blob = proxy.client().bucket("vault").blob(name, chunk_size=MIB)
    try:
        blob.upload_from_file(io.BytesIO(data), timeout=30)  # without a size it is resumable, in chunks
        ended = True
    except (GoogleAPIError, GoogleCloudError, InvalidResponse, requests.ConnectionError):
        ended = False

    assert done
    whole_or_absent(proxy, name, data, there=ended)


def test_no_note_of_an_upload_is_left_when_all_have_ended(proxy: AttackedProxy) -> None:
    begun = proxy.requests().post(UPLOAD, params={"uploadType": "resumable", "name": "noted"}, timeout=30)
    before = len(list((proxy.folder / "state" / "uploads").iterdir()))

    assert proxy.requests().put(begun.headers["Location"], data=MARK, timeout=30).status_code == 200

    assert len(list((proxy.folder / "state" / "uploads").iterdir())) == before - 1
