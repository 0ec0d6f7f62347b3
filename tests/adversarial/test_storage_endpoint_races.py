"""Writers of every kind race on the same objects of the storage endpoint, each on the generation that it has read.

Each acknowledged write names the generation that it followed. So the writes of an object are one chain exactly if no
generation was followed twice, whichever API, and whoever beside the endpoint, wrote it.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

import google_crc32c

from bastion.adapters.folder.store import DirectoryStore
from bastion.core.errors import PreconditionFailed
from bastion.emulators.gcs.server import StorageEndpoint

# The last one cannot be a file of its own name.
KEYS = ("a", "folder/b", "folder//c")
UPLOAD = "/upload/storage/v1/b/lake/o"
OBJECTS = "/storage/v1/b/lake/o/"
# Acknowledged, of all writers together.
WRITES = 250
WRITERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """An acknowledged one; generation 0 means that there is no object."""

    key: str
    after: int
    generation: int


@dataclass(slots=True)
class History:
    lock: threading.Lock = field(default_factory=threading.Lock)
    writes: list[Write] = field(default_factory=list)
    contents: dict[tuple[str, int], bytes] = field(default_factory=dict)
    wrong: list[object] = field(default_factory=list)

    def saw(self, key: str, generation: int, content: bytes) -> None:
        with self.lock:
            if self.contents.setdefault((key, generation), content) != content:
                self.wrong.append(("two contents of one generation", key, generation))


class Client:
    def __init__(self, url: str) -> None:
        self._netloc = urlsplit(url).netloc
        self._connection = http.client.HTTPConnection(self._netloc, timeout=30)

    def ask(self, method: str, target: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, target, body=body, headers=given)
        response = self._connection.getresponse()
        shown = {name.lower(): value for name, value in response.getheaders()}
        return response.status, shown, response.read()

    def beside(self) -> Client:
        return Client(f"http://{self._netloc}")

    def close(self) -> None:
        self._connection.close()


# What one kind of write answers: its status, and the new generation if it was taken.
Answer = tuple[int, int]
Writing = Callable[[Client, DirectoryStore, str, int, bytes, bytes], Answer]


def generation_in(body: bytes, status: int) -> Answer:
    return status, int(json.loads(body)["generation"]) if status == 200 else 0


def by_json(client: Client, _store: DirectoryStore, key: str, after: int, data: bytes, _old: bytes) -> Answer:
    status, _, body = client.ask(
        "POST", f"{UPLOAD}?uploadType=media&name={quote(key, safe='')}&ifGenerationMatch={after}", data
    )
    return generation_in(body, status)


def by_xml(client: Client, _store: DirectoryStore, key: str, after: int, data: bytes, _old: bytes) -> Answer:
    status, headers, _ = client.ask("PUT", f"/lake/{key}", data, x_goog_if_generation_match=str(after))
    return status, int(headers.get("x-goog-generation", "0"))


def by_session(client: Client, _store: DirectoryStore, key: str, after: int, data: bytes, _old: bytes) -> Answer:
    """The last request comes twice at once, as of a client that gave up too early."""
    query = f"uploadType=resumable&name={quote(key, safe='')}&ifGenerationMatch={after}"
    status, headers, _ = client.ask("POST", f"{UPLOAD}?{query}")
    if status != 200:
        return status, 0
    address = headers["location"].partition("/upload")
    target = f"/upload{address[2]}"
    answers: list[Answer] = []

    def finish() -> None:
        with contextlib.closing(client.beside()) as other:
            status, _, body = other.ask("PUT", target, data)
            answers.append(generation_in(body, status))

    threads = [threading.Thread(target=finish) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = {answer for answer in answers if answer[0] == 200}
    # One may be refused, and the other find that what was in the way is gone.
    assert len(taken) <= 1, answers
    return max(taken, default=answers[0])


def by_compose(client: Client, _store: DirectoryStore, key: str, after: int, _data: bytes, old: bytes) -> Answer:
    if not after or len(old) > 100_000:
        return 412, 0
    sources = {"sourceObjects": [{"name": key, "generation": str(after)}] * 2}
    target = f"{OBJECTS}{quote(key, safe='')}/compose?ifGenerationMatch={after}"
    status, _, body = client.ask("POST", target, json.dumps(sources).encode())
    return generation_in(body, status)


def by_folder(_client: Client, store: DirectoryStore, key: str, after: int, data: bytes, _old: bytes) -> Answer:
    try:
        return 200, store.put(key, data, generation=after).generation
    except PreconditionFailed:
        return 412, 0


def by_deletion(client: Client, _store: DirectoryStore, key: str, after: int, _data: bytes, _old: bytes) -> Answer:
    if not after:
        return 412, 0
    return client.ask("DELETE", f"{OBJECTS}{quote(key, safe='')}?ifGenerationMatch={after}")[0], 0


def by_patch(client: Client, _store: DirectoryStore, key: str, after: int, _data: bytes, _old: bytes) -> Answer:
    """No write of bytes: whoever changes attributes must not move the generation."""
    target = f"{OBJECTS}{quote(key, safe='')}?ifGenerationMatch={after}"
    status, _, body = client.ask("PATCH", target, b'{"metadata": {"k": "v"}}')
    assert status != 200 or int(json.loads(body)["generation"]) == after
    return 412 if status == 200 else status, 0


WRITINGS: tuple[Writing, ...] = (by_json, by_xml, by_session, by_compose, by_folder, by_deletion, by_patch)


def look(client: Client, key: str, history: History) -> tuple[int, bytes]:
    """Generation and bytes; they, size and checksum of one answer must belong together."""
    status, headers, body = client.ask("GET", f"{OBJECTS}{quote(key, safe='')}?alt=media")
    if status == 404:
        return 0, b""
    generation = int(headers["x-goog-generation"])
    said = headers["x-goog-hash"].partition("crc32c=")[2].partition(",")[0]
    checksum = int.from_bytes(base64.b64decode(said), "big")
    if (status, checksum, headers["x-goog-stored-content-length"]) != (200, google_crc32c.value(body), str(len(body))):
        history.wrong.append(("an answer that contradicts itself", status, headers))
    history.saw(key, generation, body)
    return generation, body


def write(number: int, client: Client, store: DirectoryStore, history: History) -> None:
    chosen = random.Random(number)
    count = 0
    while len(history.writes) < WRITES and not history.wrong:
        key = chosen.choice(KEYS)
        after, old = look(client, key, history)
        count += 1
        data = f"{number} {count} ".encode() * chosen.choice((1, 1, 1, 20_000))
        writing = chosen.choice(WRITINGS)
        status, generation = writing(client, store, key, after, data, old)
        if status in (200, 204):
            with history.lock:
                history.writes.append(Write(key=key, after=after, generation=generation))
            if generation:
                history.saw(key, generation, old + old if writing is by_compose else data)
        elif status not in (404, 412):
            history.wrong.append((writing.__name__, status))


def test_writers_of_every_kind_lose_no_update_and_readers_see_whole_generations(tmp_path: Path) -> None:
    history = History()
    with StorageEndpoint(tmp_path, buckets=["lake"]) as endpoint, contextlib.ExitStack() as closing:
        store = DirectoryStore(tmp_path / "lake")

        def run(number: int) -> None:
            try:
                with contextlib.closing(Client(endpoint.url)) as client:
                    write(number, client, store, history)
            except Exception as error:  # noqa: BLE001 - a thread's failure must fail the test
                history.wrong.append(repr(error))

        threads = [threading.Thread(target=run, args=(number,)) for number in range(WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        reader = closing.enter_context(contextlib.closing(Client(endpoint.url)))
        last = {key: look(reader, key, history)[0] for key in KEYS}

    assert history.wrong == []
    followed = Counter((write.key, write.after) for write in history.writes if write.after)
    made = Counter((write.key, write.generation) for write in history.writes if write.generation)
    assert [max(followed.values()), max(made.values())] == [1, 1]
    assert all(not write.generation or write.generation > write.after for write in history.writes)
    # A chain: what nobody followed is what is there now, and nothing was followed that nobody wrote.
    assert made.keys() - followed.keys() == {(key, generation) for key, generation in last.items() if generation}
    assert followed.keys() - made.keys() == set()
    for key in KEYS:
        begun = sum(write.key == key and not write.after for write in history.writes)
        ended = sum(write.key == key and not write.generation for write in history.writes)
        assert begun - ended == bool(last[key])
