"""The line of each key in a TOML text, which TOML parsers do not keep.

The scanner relies on valid TOML: a parser has accepted the text. Where it cannot follow the text, it stops. The answer
is then the line of an enclosing table, or None, never a wrong line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import tomli

Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_REST_OF_SCALAR = re.compile(r"[^,\]}\n#]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
# Multi-line strings may end in up to two quotes of their own before the closing three.
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)


class Lines:
    """The lines of a text's keys, tables and array elements (by index, from 0)."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Path, int] = {}
        scanner = _Scanner(text)
        try:
            for path, position in scanner.located_keys():
                for length in range(1, len(path) + 1):
                    # A table defined in several places counts where it first appears.
                    self._lines.setdefault(path[:length], scanner.line(position))
        except (_Lost, RecursionError):
            return

    def of(self, *path: str | int) -> int | None:
        """The line, from 1, of that key or of the innermost enclosing table found."""
        for length in range(len(path), 0, -1):
            line = self._lines.get(path[:length])
            if line is not None:
                return line
        return None


class _Lost(Exception):
    """The scanner cannot follow the text."""


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._counted_position = 0
        self._counted_line = 1
        self._last_index: dict[Path, int] = {}

    def line(self, position: int) -> int:
        # Positions only grow, so each newline is counted once.
        self._counted_line += self._text.count("\n", self._counted_position, position)
        self._counted_position = max(self._counted_position, position)
        return self._counted_line

    def located_keys(self) -> Iterator[tuple[Path, int]]:
        table: Path = ()
        while self._skip(_BLANK) < len(self._text):
            start = self._position
            if self._take("[["):
                table = self._array_table(self._key())
                self._expect("]]")
                yield table, start
            elif self._take("["):
                table = self._resolve(self._key())
                self._expect("]")
                yield table, start
            else:
                yield from self._pair(table)
                self._skip(_REST_OF_SCALAR)

    def _pair(self, table: Path) -> Iterator[tuple[Path, int]]:
        start = self._position
        path = table + self._key()
        self._expect("=")
        yield path, start
        self._skip(_SPACE)
        yield from self._value(path)

    def _value(self, path: Path) -> Iterator[tuple[Path, int]]:
        if self._take("["):
            index = 0
            while not self._closes("]"):
                yield (*path, index), self._position
                yield from self._value((*path, index))
                index += 1
        elif self._take("{"):
            while not self._closes("}"):
                yield from self._pair(path)
        elif (string := _STRING.match(self._text, self._position)) is not None:
            self._position = string.end()
        else:
            self._skip(_REST_OF_SCALAR)

    def _closes(self, bracket: str) -> bool:
        self._skip(_BLANK)
        if self._take(","):
            self._skip(_BLANK)
        if self._position >= len(self._text):
            raise _Lost
        return self._take(bracket)

    def _key(self) -> tuple[str, ...]:
        parts: list[str] = []
        while True:
            self._skip(_SPACE)
            if (bare := _BARE_KEY.match(self._text, self._position)) is not None:
                parts.append(bare[0])
                self._position = bare.end()
            elif (quoted := _STRING.match(self._text, self._position)) is not None:
                parts.append(str(tomli.loads(f"key = {quoted[0]}")["key"]))
                self._position = quoted.end()
            else:
                raise _Lost
            self._skip(_SPACE)
            if not self._take("."):
                return tuple(parts)

    def _resolve(self, key: tuple[str, ...]) -> Path:
        """A header's key as a path; a list of tables stands for its last table."""
        path: Path = ()
        for part in key:
            path += (part,)
            if path in self._last_index:
                path += (self._last_index[path],)
        return path

    def _array_table(self, key: tuple[str, ...]) -> Path:
        path = (*self._resolve(key[:-1]), key[-1])
        self._last_index[path] = self._last_index.get(path, -1) + 1
        return (*path, self._last_index[path])

    def _skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self._text, self._position)
        assert match is not None, "each of these patterns matches the empty string"
        self._position = match.end()
        return self._position

    def _take(self, token: str) -> bool:
        if self._text.startswith(token, self._position):
            self._position += len(token)
            return True
        return False

    def _expect(self, token: str) -> None:
        self._skip(_SPACE)
        if not self._take(token):
            raise _Lost
