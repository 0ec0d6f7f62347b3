"""Adds a user to `[admins]` of a quota file's text, or takes one away; everything else stays as it is, with comments.

A change of the text counts only if a parser then finds exactly the wanted document. A file that is written in another
way than usual is refused, with the lines to write.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import tomli

from quota.admins import TABLE
from quota.lines import Lines

_TOKEN = re.compile(r"#[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*'")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class CannotEdit(ValueError):
    """The text is laid out in another way; `lines` are what somebody has to write."""

    def __init__(self, lines: str) -> None:
        super().__init__(lines)
        self.lines = lines


def added(text: str, user: str, project: str) -> str:
    """The text with one more admin of the project, or with "" of the bastion; the same text if he is one already.

    Raises CannotEdit. The text must be a valid quota file.
    """
    return _changed(text, project, lambda users: users if user in users else [*users, user])


def removed(text: str, user: str, project: str) -> str:
    """The text without that admin; the same text if he is none. Raises CannotEdit."""
    return _changed(text, project, lambda users: [each for each in users if each != user])


def _changed(text: str, project: str, change: Callable[[list[str]], list[str]]) -> str:
    document = tomli.loads(text.removeprefix("\ufeff"))
    path = (TABLE, "projects", project) if project else (TABLE, "bastion")
    wanted = copy.deepcopy(document)
    *tables, key = path
    inner = wanted
    for name in tables:
        inner = inner.setdefault(name, {})
    before = inner.get(key)
    inner[key] = change(before or [])
    if inner[key] == (before or []):
        return text
    for candidate in _candidates(text, path, before, inner[key]):
        if _parsed(candidate) == wanted:
            return candidate
    raise CannotEdit(f"[{'.'.join(tables)}]\n{_key(key)} = {json.dumps(inner[key], ensure_ascii=False)}")


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomli.loads(text.removeprefix("\ufeff"))
    except tomli.TOMLDecodeError:
        return None


def _candidates(text: str, path: tuple[str, ...], before: list[str] | None, after: list[str]) -> Iterator[str]:
    """Texts that may have the wanted document, the nicest first."""
    if before is None:
        yield from _with_new_key(text, path, after)
        return
    line = Lines(text.removeprefix("\ufeff")).of(*path)
    lines = text.splitlines(keepends=True)
    if line is None:
        return
    head, value = "".join(lines[: line - 1]), "".join(lines[line - 1 :])
    new = [user for user in after if user not in before]
    changes = (
        _with_element(value, new[0], empty=not before) if new else _without_elements(value, set(before) - {*after})
    )
    yield from (head + each for each in changes)


def _with_new_key(text: str, path: tuple[str, ...], users: list[str]) -> Iterator[str]:
    table = ".".join(path[:-1])
    pair = f"{_key(path[-1])} = {json.dumps(users, ensure_ascii=False)}\n"
    header = re.compile(rf"^[ \t]*\[[ \t]*{re.escape(table)}[ \t]*\][^\n]*\n", re.MULTILINE)
    found = header.search(text)
    if found is not None:
        yield text[: found.end()] + pair + text[found.end() :]
    whole = text if text.endswith("\n") else f"{text}\n"
    yield f"{whole}\n[{table}]\n{pair}"


def _with_element(value: str, user: str, *, empty: bool) -> Iterator[str]:
    """`value` begins with the key, and other lines follow it."""
    element = json.dumps(user, ensure_ascii=False)
    masked = _TOKEN.sub(lambda token: "_" * len(token[0]), value)
    end = masked.find("]")
    if end < 0:
        return
    inside, rest = value[:end], value[end:]
    own_line = re.search(r"\n([ \t]*)\Z", inside)
    if own_line is not None:
        body = inside[: own_line.start() + 1]
        indent = re.findall(r"^[ \t]*", body, re.MULTILINE)[-2] or "    "
        yield f"{body}{indent}{element},\n{own_line[1]}{rest}"  # after a trailing comma
        yield f"{body}{indent}, {element}\n{own_line[1]}{rest}"
    stripped = inside.rstrip()
    if not empty:
        yield f"{stripped}, {element}{rest}"
    yield f"{stripped}{'' if stripped.endswith('[') else ' '}{element}{rest}"


def _without_elements(value: str, users: set[str]) -> Iterator[str]:
    """Without the first element that is one of these: each file names a user once."""
    for token in _TOKEN.finditer(value):
        if token[0].startswith("#") or tomli.loads(f"x = {token[0]}")["x"] not in users:
            continue
        before, after = value[: token.start()], value[token.end() :]
        whole_line = re.match(r"[ \t]*,?[ \t]*\r?\n", after)
        start_of_line = re.search(r"\n[ \t]*\Z", before)
        if whole_line is not None and start_of_line is not None:
            yield before[: start_of_line.start() + 1] + after[whole_line.end() :]
        following = re.match(r"[ \t]*,[ \t]*", after)
        if following is not None:
            yield before + after[following.end() :]
        leading = re.search(r",\s*\Z", before)
        if leading is not None:
            yield before[: leading.start()] + after
        yield before + after
        return


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)
