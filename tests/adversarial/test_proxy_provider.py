"""A storage service that lies: random tampering, answers that are none, a key service that is gone or another one."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bastion.adapters.kms import keyring
from bastion.core.errors import SealBroken
from bastion.net.http1 import Disconnect, Headers, Response
from bastion.proxy.service.upstream import Asked, UpstreamUnavailable
from bastion.proxy.settings import KeyMapping
from tests.support.proxy_objects import put_raw, stage
from tests.support.proxy_stage import KEY, InProcessAnswer, Stage, body_of, document

__all__ = ["stage"]

SEGMENT = 262144
MARK = b"never-in-the-clear-"

Made = dict[str, tuple[dict[str, Any], bytes]]
Tampering = Callable[[random.Random, Made], tuple[dict[str, Any], bytes]]


def read(stage: Stage, name: str, text: str = "") -> bytes | None:
    """What a client gets to a clean end; None: it is refused, or broken in the middle."""
    response = stage.get(name, headers=[("Range", text)] if text else [])
    if response.status not in (200, 206):
        assert response.status >= 400
        body_of(response)
        return None
    try:
        return b"".join(map(bytes, response.body))  # type: ignore[arg-type]
    except (SealBroken, UpstreamUnavailable):
        return None
    finally:
        response.close()


def flipped(random: random.Random, made: Made) -> tuple[dict[str, Any], bytes]:
    metadata, data = made["a"]
    at = random.randrange(len(data))
    return metadata, data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]


def cut(random: random.Random, made: Made) -> tuple[dict[str, Any], bytes]:
    metadata, data = made["a"]
    return metadata, data[: random.choice([random.randrange(len(data)), random.randrange(3) * SEGMENT])]


def extended(random: random.Random, made: Made) -> tuple[dict[str, Any], bytes]:
    metadata, data = made["a"]
    more = random.choice([data[-16:], data[: random.randrange(1, SEGMENT)], bytes(SEGMENT), made["b"][1][SEGMENT:]])
    return metadata, data + more


def shuffled(random: random.Random, made: Made) -> tuple[dict[str, Any], bytes]:
    metadata, data = made["a"]
    segments = [data[at : at + SEGMENT] for at in range(0, len(data), SEGMENT)]
    one, other = random.sample(range(len(segments)), 2)
    segments[one] = random.choice([segments[other], made["b"][1][one * SEGMENT :][:SEGMENT]])
    return metadata, b"".join(segments)


def crossed(random: random.Random, made: Made) -> tuple[dict[str, Any], bytes]:
    one, other = random.sample(sorted(made), 2)
    return made[one][0], made[other][1]


def mixed_metadata(random: random.Random, made: Made) -> tuple[dict[str, Any], bytes]:
    metadata, data = made["a"]
    entry = random.choice(sorted(metadata))
    return {**metadata, entry: made["b"][0][entry]}, random.choice([data, made["b"][1]])


def bent_metadata(random: random.Random, made: Made) -> tuple[dict[str, Any], bytes]:
    metadata, data = made["a"]
    entry = random.choice(sorted(metadata))
    text = metadata[entry]
    try:
        raw = bytearray(base64.b64decode(text, validate=True))
        raw[random.randrange(len(raw))] ^= 1 << random.randrange(8)
        bent = base64.b64encode(raw).decode()
    except ValueError:
        at = random.randrange(len(text))
        bent = text[:at] + random.choice("0aZ/ ") + text[at + 1 :]
    return {**metadata, entry: random.choice([bent, "", text.upper(), "A" * 3000])}, data


def stripped(random: random.Random, made: Made) -> tuple[dict[str, Any], bytes]:
    metadata, data = made["a"]
    left = {name: metadata[name] for name in random.sample(sorted(metadata), random.randrange(len(metadata)))}
    return left, random.choice([data, MARK * 1000, b""])


OF_BYTES: list[Tampering] = [flipped, cut, extended, shuffled, crossed]
OF_METADATA: list[Tampering] = [mixed_metadata, bent_metadata, stripped]


@pytest.mark.parametrize("tamper", [*OF_BYTES, *OF_METADATA], ids=lambda tamper: tamper.__name__)
def test_no_random_tampering_gives_wrong_bytes(stage: Stage, tamper: Tampering) -> None:
    seeded = random.Random(tamper.__name__)
    plain = {name: seeded.randbytes(2 * SEGMENT + seeded.randrange(SEGMENT)) for name in "abc"}
    made: Made = {}
    for name, data in plain.items():
        stage.put(name, data)
        resource, sealed = stage.stored(name)
        made[name] = resource["metadata"], sealed
    for _ in range(60):
        metadata, data = tamper(seeded, made)
        put_raw(stage, {"name": "a", "metadata": metadata}, data)
        if seeded.random() < 0.5:
            stage.restart()
        size = len(plain["a"])
        start = seeded.randrange(size)
        end = min(size, start + seeded.choice([1, 100, SEGMENT, size]))
        whole, last = read(stage, "a"), read(stage, "a", "bytes=-9")
        assert whole is None or (whole == plain["a"] and tamper in OF_METADATA)
        assert last is None or last == plain["a"][-9:]
        part = read(stage, "a", f"bytes={start}-{end - 1}")
        assert part is None or part == plain["a"][start:end]
        listed = document(stage.ask("GET", "/storage/v1/b/vault/o"))["items"]
        assert {item["name"] for item in listed} == {"a", "b", "c"}


def test_who_takes_the_envelope_off_gets_nothing_believed(stage: Stage) -> None:
    stage.put("a", b"what was stored")
    for text in (b"what was stored", b"forged", b""):
        put_raw(stage, {"name": "a"}, text)
        for target in ("/storage/v1/b/vault/o/a?alt=media", "/download/storage/v1/b/vault/o/a", "/vault/a"):
            assert stage.ask("GET", target).status == 403, target


@pytest.mark.parametrize("status", [201, 202, 203, 204, 206, 226])
@pytest.mark.parametrize("target", ["/storage/v1/b/vault/o/a?alt=media", "/vault/a"])
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_a_success_that_is_not_the_object_is_none(stage: Stage, status: int, target: str, known: bool) -> None:
    stage.put("a", bytes(300_000))
    if not known:
        stage.restart()
    forged = Response(status=status, headers=Headers([("Content-Type", "text/plain")]), body=b"forged")
    stage.upstream.before = lambda asked: forged

    for headers in ([], [("Range", "bytes=0-5")]):
        response = stage.ask("GET", target, headers=headers)
        assert response.status == 503
        assert b"forged" not in body_of(response)


@pytest.mark.parametrize(
    "claimed", ["0", "55", "56", "57", "262144", "299999", "1000000000000", "-1", "1e3", "", " 7", "9" * 30]
)
def test_a_forged_size_gives_no_wrong_bytes(stage: Stage, claimed: str) -> None:
    data = random.Random(1).randbytes(300_000)
    stage.put("a", data)
    stage.restart()

    def forged(asked: Asked, answer: InProcessAnswer) -> None:
        if "alt=media" not in asked.target:
            described = json.loads(answer.content)
            answer.replace(json.dumps({**described, "size": claimed}).encode())

    stage.upstream.after = forged

    for text, right in (
        ("", data),
        ("bytes=0-9", data[:10]),
        ("bytes=-9", data[-9:]),
        ("bytes=262200-", data[262200:]),
    ):
        got = read(stage, "a", text)
        assert got is None or got == right


@pytest.mark.parametrize(
    "headers",
    [
        [("Content-Encoding", "gzip")],
        [("Content-Encoding", "gzip"), ("Content-Encoding", "br")],
        [("Content-Range", "bytes 0-0/1")],
        [("x-goog-hash", "crc32c=AAAAAA=="), ("x-goog-hash", "md5=AAAA")],
        [("Transfer-Encoding", "gzip")],
        [("x-goog-stored-content-length", "1")],
        [("Location", "https://elsewhere.example/")],
    ],
    ids=[str(n) for n in range(7)],
)
def test_headers_that_the_service_makes_up_give_no_wrong_bytes(stage: Stage, headers: list[tuple[str, str]]) -> None:
    stage.put("a", MARK)

    def forged(asked: Asked, answer: InProcessAnswer) -> None:
        if "alt=media" in asked.target:
            for name, value in headers:
                answer.headers.add(name, value)

    stage.upstream.after = forged
    response = stage.get("a")

    assert response.status >= 500 or body_of(response) == MARK
    assert "content-encoding" not in response.headers
    if response.status == 200:
        assert response.headers.get_all("x-goog-hash")[0] != "crc32c=AAAAAA=="


def upload(stage: Stage) -> Response:
    return stage.ask("POST", "/upload/storage/v1/b/vault/o?uploadType=media&name=new", MARK * 10)


def another_keyring(file: Path) -> None:
    file.unlink()
    keyring.create(file, KEY)


BREAKAGES: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "garbage": lambda file: file.write_bytes(b"{"),
    "empty": lambda file: file.write_bytes(b""),
    "readable by all": lambda file: file.chmod(0o644),
}


@pytest.mark.parametrize("way", sorted(BREAKAGES))
def test_without_the_key_nothing_is_sent_and_what_is_cached_is_read(stage: Stage, way: str) -> None:
    stage.put("old", MARK * 100)
    BREAKAGES[way](stage.keyring_file)
    assert upload(stage).status == 200  # under the session's key, which lasts for five minutes
    stage.clock.advance(301)
    stage.forget_asked()

    for _ in range(3):
        assert upload(stage).status in (403, 503)
    target = "/upload/storage/v1/b/vault/o?uploadType=resumable&name=new"
    assert stage.ask("POST", target, b"{}").status in (403, 503)
    assert stage.ask("PUT", "/vault/new", MARK).status in (403, 503)

    assert stage.requests == []
    assert stage.content("old") == MARK * 100  # its own key is remembered with it
    stage.restart()
    assert read(stage, "old") is None


def test_another_keyring_of_the_same_name_opens_nothing_and_harms_nothing(stage: Stage) -> None:
    stage.put("old", MARK * 100)
    kept = stage.keyring_file.read_bytes()
    another_keyring(stage.keyring_file)
    stage.clock.advance(301)
    assert upload(stage).status == 200
    assert stage.content("new") == MARK * 10
    assert MARK not in stage.stored("new")[1]
    stage.restart()
    assert read(stage, "old") is None
    assert stage.content("new") == MARK * 10

    stage.keyring_file.write_bytes(kept)
    stage.restart()
    assert stage.content("old") == MARK * 100
    assert read(stage, "new") is None


def begun(stage: Stage, bucket: str, name: str) -> str:
    target = f"/upload/storage/v1/b/{bucket}/o?uploadType=resumable&name={name}"
    response = stage.ask("POST", target, b"{}")
    body_of(response)
    assert response.status == 200
    return response.headers.get("Location").partition("storage.googleapis.com")[2]


def remapped(stage: Stage, text: str) -> None:
    stage.restart()
    object.__setattr__(stage.parts, "mapping", KeyMapping.parse(text))


@pytest.mark.parametrize(
    ("name", "mapping", "status"),
    [("low/a", f"vault:{KEY},attic:{KEY}", 410), ("deep/a", f"vault:{KEY}", 400)],
    ids=["mapped since", "no longer mapped"],
)
def test_an_upload_that_was_begun_under_another_mapping_takes_no_plaintext(
    stage: Stage, name: str, mapping: str, status: int
) -> None:
    target = begun(stage, "attic", name)
    remapped(stage, mapping)
    assert stage.ask("PUT", target, MARK).status == status
    assert not [body for _, body in stage.upstream.asked if MARK in body]


def test_an_upload_that_was_begun_while_encryption_was_off_is_gone(stage: Stage) -> None:
    stage.restart(encrypt=False)
    target = begun(stage, "vault", "a")
    stage.restart(encrypt=True)
    assert stage.ask("PUT", target, MARK).status == 410
    assert not [body for _, body in stage.upstream.asked if MARK in body]


def test_an_upload_that_was_begun_while_encryption_was_on_stays_encrypted(stage: Stage) -> None:
    target = begun(stage, "vault", "a")
    stage.restart(encrypt=False)

    assert stage.ask("PUT", target, MARK).status == 200

    assert stage.content("a") == MARK
    assert MARK not in stage.stored("a")[1]


@pytest.mark.parametrize("status", [308, 307, 302])
def test_a_large_upload_that_the_service_leaves_open_fails(stage: Stage, status: int) -> None:
    def left_open(asked: Asked) -> Response | None:
        if asked.method != "PUT":
            return None
        for _ in asked.body if not isinstance(asked.body, bytes) else ():
            pass
        return Response(status=status, headers=Headers([("Location", "https://elsewhere.example/")]))

    stage.upstream.before = left_open
    target = "/upload/storage/v1/b/vault/o?uploadType=media&name=a"
    response = stage.ask("POST", target, bytes(9 * 1024 * 1024))

    assert response.status in (502, 503)
    assert "location" not in response.headers


@pytest.mark.parametrize("cut", [3, 20, 2000])
def test_gzipped_data_that_is_cut_off_never_ends_cleanly_where_it_is_unpacked(stage: Stage, cut: int) -> None:
    packed = gzip.compress(random.Random(cut).randbytes(5000))[:-cut]
    stage.put("a", packed, query="&contentEncoding=gzip")

    with contextlib.closing(stage.get("a")) as response, pytest.raises(Disconnect) as caught:
        b"".join(map(bytes, response.body))  # type: ignore[arg-type]

    # Without a length, an end of the connection could pass for the end of the object.
    assert caught.value.reset
