"""Targets of requests that were bent at random: whatever a service makes of one, a mapped bucket gets no plaintext."""

from __future__ import annotations

import random
import re
from urllib.parse import unquote

import pytest

from bastion.net.http1 import Request
from bastion.net.http1.head import parse_head, split_target
from bastion.net.http1.messages import BadRequest, BytesBody
from bastion.proxy.handler import handler
from bastion.proxy.service.intercepted import is_storage, split_authority
from tests.support.proxy_objects import stage
from tests.support.proxy_stage import Stage

__all__ = ["stage"]

MARK = b"never-in-the-clear-"
TEMPLATES = [
    "POST /upload/storage/v1/b/vault/o?uploadType=media&name=a",
    "POST /upload/storage/v1/b/vault/o?name=a",
    "POST /resumable/upload/storage/v1/b/vault/o?uploadType=media&name=a",
    "PUT /upload/storage/v1/b/vault/o?uploadType=resumable&upload_id=x",
    "POST /storage/v1/b/vault/o?name=a",
    "PUT /storage/v1/b/vault/o/a",
    "PUT /vault/a",
    "PUT /vault/a?userProject=p",
    "PUT https://storage.googleapis.com/vault/a",
    "POST /vault?policy",
]
HOSTS = [
    "storage.googleapis.com",
    "www.googleapis.com",
    "vault.storage.googleapis.com",
    "us-east1-storage.googleapis.com",
    "lake.storage.googleapis.com",
]
BITS = [
    *(
        "/",
        "//",
        "/.",
        "/..",
        "/./",
        "/../",
        "%2F",
        "%2f",
        "%5C",
        "\\",
        "%2e",
        "%2E%2e",
        "%00",
        "%20",
        "%09",
        "+",
        ";",
        "#",
    ),
    *(
        "?",
        "&",
        "=",
        "%3F",
        "%26",
        "%25",
        "%252F",
        "lake",
        "lake/../",
        "/lake",
        "..%2f",
        "v1",
        "b",
        "o",
        "A",
        "%76",
        "\xe9",
    ),
    *(
        "uploadType=media",
        "&name=b",
        "&alt=media",
        "&upload_id=x",
        "&uploadType=multipart",
        ":",
        "@",
        "%C0%AF",
        "%u002f",
    ),
]


def bent(random: random.Random, target: str) -> str:
    for _ in range(random.choice([1, 1, 2, 3])):
        at = random.randrange(len(target) + 1)
        bit = random.choice(BITS)
        way = random.randrange(4)
        if way == 0:
            target = target[:at] + bit + target[at:]
        elif way == 1:
            target = target[:at] + bit + target[at + random.choice([1, 2, len(bit)]) :]
        elif way == 2 and at < len(target):
            target = target[:at] + f"%{ord(target[at]):02{random.choice('xX')}}" + target[at + 1 :]
        else:
            target = target[:at] + target[at:].swapcase() if random.random() < 0.3 else target[:at] + target[at + 1 :]
    return target


def readings(authority: str, target: str) -> set[tuple[str, ...]]:
    """The pieces of a path, as readers of some leniency see them: bucket first, or after the API's own words."""
    path = re.split(r"[?#]", target)[0]
    found = set()
    for text in (path, unquote(path), unquote(unquote(path))):
        for one in (text, text.replace("\\", "/")):
            pieces: list[str] = []
            for piece in one.split("/"):
                if piece == "..":
                    pieces = pieces[:-1]
                elif piece not in ("", "."):
                    pieces.append(piece)
            found.add(tuple(pieces))
    bucket = authority.lower().removesuffix(".storage.googleapis.com")
    # A service that knows no buckets' own hosts goes by the path alone.
    return found if bucket == authority.lower() else found | {(bucket, *pieces) for pieces in found}


def in_the_vault(pieces: tuple[str, ...]) -> bool:
    """Whether that is a path of the mapped bucket, of either API."""
    words = list(pieces)
    if words[:1] == ["resumable"]:
        words = words[1:]
    if words[:1] in (["upload"], ["download"]):
        words = words[1:]
    if words[:1] == ["storage"]:
        return words[2:5] == ["b", "vault", "o"]
    return words[:1] == ["vault"]


@pytest.mark.parametrize("seed", range(6))
def test_no_bent_target_brings_plaintext_into_a_mapped_bucket(stage: Stage, seed: int) -> None:
    seeded = random.Random(seed)
    answer = handler(stage.parts)
    sent = passed = 0
    for _ in range(700):
        host = seeded.choice(HOSTS)
        method, _, target = seeded.choice(TEMPLATES).partition(" ")
        try:
            head = parse_head(f"{method} {bent(seeded, target)} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1"))
            path, query, authority = split_target(head.target, host)
            if not is_storage(split_authority(authority)[0]):
                continue  # the listener refuses it
        except (BadRequest, ValueError):
            continue
        request = Request(
            method=method, target=head.target, path=path, query=query, headers=head.headers,
            body=BytesBody(MARK), authority=authority, secure=True,
        )  # fmt: skip
        sent += 1
        stage.forget_asked()
        answer(request).close()
        for asked, body in stage.upstream.asked:
            if MARK in body:
                passed += 1
                meant = [pieces for pieces in readings(asked.authority, asked.target) if in_the_vault(pieces)]
                assert not meant, (host, head.target, meant)
    assert sent > 300
    assert passed > 5
