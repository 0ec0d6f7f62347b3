"""References `$(NAME)` in commands and values (third_party/forked/golang/expansion/expand.go)."""

from __future__ import annotations

from collections.abc import Mapping


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)`; unknown names stay as they are, `$$` becomes `$`, and a `$` before anything else stays.

    Works on bytes, as upstream does, which reads the byte after a `$` as a character: `$é` does not survive.
    """
    data = text.encode("utf-8", "surrogateescape")
    out = bytearray()
    at = 0
    while at < len(data):
        if data[at : at + 1] != b"$" or at + 1 == len(data):
            out += data[at : at + 1]
            at += 1
            continue
        following = data[at + 1 : at + 2]
        closed = data.find(b")", at + 2) if following == b"(" else -1
        if following == b"$":
            out += b"$"
            at += 2
        elif closed >= 0:
            name = data[at + 2 : closed].decode("utf-8", "surrogateescape")
            out += variables.get(name, f"$({name})").encode("utf-8", "surrogateescape")
            at = closed + 1
        else:
            out += b"$" + chr(following[0]).encode()
            at += 2
    return out.decode("utf-8", "surrogateescape")
