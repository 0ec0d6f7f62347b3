"""Random operations through the proxy while the service misbehaves, held against a model of what may be there."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
import requests
import urllib3
from google.api_core.exceptions import GoogleAPIError
from google.cloud.exceptions import GoogleCloudError
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from google.cloud.storage.retry import DEFAULT_RETRY

from bastion.emulators.gcs.fault_rules import parse_flag
from bastion.emulators.gcs.faults import Faults
from tests.support.attacked_proxy import MARK, URL, AttackedProxy, attacked

pytestmark = pytest.mark.e2e

NAMES = ["a", "b", "c/d e", "c/é"]
# None: no object.
Content = bytes | None
FAILED = (requests.RequestException, urllib3.exceptions.HTTPError)

FAULTS: dict[str, list[str]] = {
    "statuses": ["503,percent=12", "429,percent=4", "500,percent=4"],
    "resets": ["reset,percent=12", "reset-body,percent=15"],
    "lost replies": ["lost-reply,percent=15", "reset-body,method=GET,percent=8,after=1000"],
    "slowness": [
        "stall,percent=8,seconds=0.02",
        "stall,percent=8,seconds=0.02,then=drop",
        "slow,percent=5,rate=8000000",
    ],
    "all": [
        "503,percent=4",
        "reset,percent=4",
        "lost-reply,percent=4",
        "reset-body,percent=6",
        "slow,percent=4,rate=9000000",
    ],
}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedProxy]:
    with attacked(tmp_path_factory.mktemp("faults")) as proxy:
        yield proxy


class Model:
    """What may lie under each name: one content if all is known, several after a change that nobody answered."""

    def __init__(self) -> None:
        self.possible: dict[str, list[Content]] = {name: [None] for name in NAMES}

    def set(self, name: str, content: Content, *, done: bool) -> None:
        """A change was answered well, or not."""
        self.possible[name] = [content] if done else [*self.possible[name], content]

    def found(self, name: str, content: Content) -> None:
        """A read was answered: what it showed is what is there."""
        matching = [one for one in self.possible[name] if one == content]
        assert matching, f"{name} is what it never was"
        self.possible[name] = matching[:1]

    def sizes(self, name: str) -> set[int | None]:
        return {None if one is None else len(one) for one in self.possible[name]}


class Walk:
    """A random walk of one client."""

    def __init__(self, proxy: AttackedProxy, seed: int) -> None:
        self._random = random.Random(seed)
        self._session = proxy.requests()
        self._client = proxy.client()
        self.model = Model()
        self.refused = self.answered = 0

    def step(self) -> None:
        name = self._random.choice(NAMES)
        acts = [self.put, self.put, self.put_in_chunks, self.put_by_google, self.get, self.get, self.part, self.copy]
        self._random.choice([*acts, self.delete, self.list, self.get_by_google])(name)

    def _content(self) -> bytes:
        size = self._random.choice([0, 1, 18, 262_072, 262_088, 262_089, 600_000, self._random.randrange(3 << 20)])
        return (MARK + self._random.randbytes(997) * (size // 997 + 1))[:size]

    def _ask(self, method: str, path: str, **more: Any) -> requests.Response | None:
        """The answer; None: there is none, or none that is whole."""
        try:
            answer = self._session.request(method, f"{URL}{path}", timeout=30, **more)
        except FAILED:
            answer = None
        if answer is None or answer.status_code in (408, 429) or answer.status_code >= 500:
            self.refused += 1
            return None
        self.answered += 1
        return answer

    def put(self, name: str) -> None:
        data = self._content()
        way = self._random.randrange(3)
        if way == 0:
            answer = self._ask("PUT", f"/vault/{quote(name)}", data=data)
        else:
            path = f"/upload/storage/v1/b/vault/o?uploadType=media&name={quote(name, safe='')}"
            sent = data if way == 1 else iter([data[: len(data) // 2], data[len(data) // 2 :]])
            answer = self._ask("POST", path, data=sent)
        if answer is not None:
            assert answer.status_code == 200, answer.text
        self.model.set(name, data, done=answer is not None)

    def put_in_chunks(self, name: str) -> None:
        data, chunk = self._content(), self._random.choice([262_144, 300_000, 1 << 20])
        path = f"/upload/storage/v1/b/vault/o?uploadType=resumable&name={quote(name, safe='')}"
        begun = self._ask("POST", path)
        if begun is None:
            return
        target, start = begun.headers["Location"].removeprefix(URL), 0
        for _ in range(60):
            end = min(len(data), start + chunk)
            span = f"bytes {start}-{end - 1}/{len(data)}" if end > start else f"bytes */{len(data)}"
            answer = self._ask("PUT", target, data=data[start:end], headers={"Content-Range": span})
            if answer is None:
                # Whoever is not answered asks; that may be in vain as well.
                answer = self._ask("PUT", target, headers={"Content-Range": f"bytes */{len(data)}"})
            if answer is None:
                continue
            if answer.status_code != 308:
                assert answer.status_code in (200, 404, 410), answer.text
                self.model.set(name, data, done=answer.status_code == 200)
                return
            kept = answer.headers.get("Range")
            start = int(kept.rpartition("-")[2]) + 1 if kept else 0
        self.model.set(name, data, done=False)

    def put_by_google(self, name: str) -> None:
        data = self._content()
        blob = self._client.bucket("vault").blob(name, chunk_size=self._random.choice([None, 1 << 20]))
        try:
            blob.upload_from_string(data, retry=DEFAULT_RETRY.with_timeout(1), timeout=30)
            done = True
        except (GoogleAPIError, GoogleCloudError, InvalidResponse, *FAILED):
            done = False
        self.model.set(name, data, done=done)

    def get(self, name: str) -> None:
        by_xml = f"/vault/{quote(name)}"
        by_json = f"/storage/v1/b/vault/o/{quote(name, safe='')}?alt=media"
        answer = self._ask("GET", self._random.choice([by_xml, by_json]))
        if answer is not None:
            assert answer.status_code in (200, 404), answer.text
            self.model.found(name, answer.content if answer.status_code == 200 else None)

    def get_by_google(self, name: str) -> None:
        try:
            content = (
                self._client.bucket("vault")
                .blob(name)
                .download_as_bytes(retry=DEFAULT_RETRY.with_timeout(1), timeout=30)
            )
        except (GoogleAPIError, GoogleCloudError, InvalidResponse, DataCorruption, *FAILED):
            return
        self.model.found(name, content)

    def part(self, name: str) -> None:
        start = self._random.choice([0, 1, 262_000, 262_088, self._random.randrange(3 << 20)])
        length = self._random.choice([1, 100, 262_144, 1 << 20])
        span = {"Range": f"bytes={start}-{start + length - 1}"}
        answer = self._ask("GET", f"/storage/v1/b/vault/o/{quote(name, safe='')}?alt=media", headers=span)
        if answer is None or answer.status_code == 404:
            return
        possible = [one for one in self.model.possible[name] if one is not None]
        if answer.status_code == 416:
            assert any(start >= len(one) for one in possible)
            return
        assert answer.status_code in (200, 206), answer.text
        assert any(answer.content == one[start : start + length] for one in possible)

    def copy(self, name: str) -> None:
        to = self._random.choice(NAMES)
        path = f"/storage/v1/b/vault/o/{quote(name, safe='')}/rewriteTo/b/vault/o/{quote(to, safe='')}"
        answer = self._ask("POST", path)
        if answer is not None and answer.status_code == 404:
            return
        assert answer is None or answer.status_code == 200, answer.text
        copied = [one for one in self.model.possible[name] if one is not None]
        kept = [] if answer is not None else self.model.possible[to]
        self.model.possible[to] = [*kept, *copied]

    def delete(self, name: str) -> None:
        answer = self._ask("DELETE", f"/storage/v1/b/vault/o/{quote(name, safe='')}")
        assert answer is None or answer.status_code in (204, 404), answer.text
        self.model.set(name, None, done=answer is not None)

    def list(self, name: str) -> None:
        answer = self._ask("GET", "/storage/v1/b/vault/o")
        if answer is None:
            return
        shown = {item["name"]: int(item["size"]) for item in answer.json().get("items", [])}
        for one in NAMES:
            assert shown.get(one) in self.model.sizes(one)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_under_faults_every_answer_is_right_and_what_was_acknowledged_is_there(
    proxy: AttackedProxy, kind: str, seed: int
) -> None:
    proxy.seen.clear()
    for name in NAMES:
        proxy.ask_endpoint("DELETE", f"/storage/v1/b/vault/o/{quote(name, safe='')}")
    faults = Faults([parse_flag(text) for text in FAULTS[kind]], seed=seed)
    walk = Walk(proxy, seed)
    proxy.wrap = faults.wrap
    try:
        for _ in range(60):
            walk.step()
            for seen in proxy.seen:
                assert MARK not in seen.body
            proxy.seen.clear()
    finally:
        proxy.wrap = lambda answer: answer
        faults.close()

    for name in NAMES:
        with contextlib.suppress(KeyError):
            walk.get(name)
    assert not proxy.in_the_clear()
    assert walk.answered > 20
    assert walk.refused > 0


def test_a_download_that_breaks_off_is_no_whole_one_and_a_line_in_the_log(proxy: AttackedProxy) -> None:
    session = proxy.requests()
    assert session.put(f"{URL}/vault/broken", data=MARK * 100_000, timeout=30).status_code == 200
    faults = Faults([parse_flag("reset-body,method=GET,path=broken,after=900000")])
    proxy.wrap = faults.wrap
    try:
        answer = None
        with contextlib.suppress(FAILED):
            answer = session.get(f"{URL}/vault/broken", timeout=30)
    finally:
        proxy.wrap = lambda answer: answer
        faults.close()
    # On a busy machine the reset takes with it what the proxy has not read yet: then nothing of it has begun.
    assert answer is None or answer.status_code == 503
    lines = [line for line in proxy.log.read_text().splitlines() if "GET /vault/broken" in line]
    assert any("broke off" in line for line in lines), lines
