"""Matches a regular expression against a whole text in bounded time, without backtracking.

Python's parser splits the pattern. Positions in the text are the bits of an integer. Each part of the pattern maps the
set of positions where it may begin to the set where it may end, so no path is tried one by one. `cost` bounds the steps
for any text of at most `TEXT_MAX_CHARS`.

Invariant: for every accepted pattern the result equals `re.fullmatch`. Not accepted: references to groups, possessive
and atomic parts.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

TEXT_MAX_CHARS = 128
# Some milliseconds.
COST_MAX = 10_000
# Steps to compile a character class and to find its positions.
_CLASS_STEPS = 100
# Steps to reverse the order of bits.
_RUN_STEPS = 10
# Characters of a range per step, because `re` expands ranges.
_CHARACTERS_PER_STEP = 50

# Python 3.10 has the parser under its old name, which later versions warn about.
_parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")

_CATEGORIES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}
_ANCHORS = {
    "AT_BEGINNING": "^",
    "AT_BEGINNING_STRING": r"\A",
    "AT_BOUNDARY": r"\b",
    "AT_NON_BOUNDARY": r"\B",
    "AT_END": "$",
    "AT_END_STRING": r"\Z",
}
# Flags that change the meaning of a character or anchor.
_FLAGS = re.IGNORECASE | re.MULTILINE | re.DOTALL | re.ASCII


# A character; a pattern for one, or for an anchor; None: any character but a newline.
_One = str | re.Pattern[str] | None


class NotMatchable(ValueError):
    """The pattern is not a valid regular expression or not supported. The message starts with a verb."""


class Matcher:
    """A pattern; `cost` is the most steps to compile and match it. A step is well under a microsecond."""

    __slots__ = ("_part", "cost")

    def __init__(self, pattern: str) -> None:
        """Raises NotMatchable for a pattern that is invalid, not supported, or too expensive."""
        try:
            tree = _parser.parse(pattern)
            builder = _Builder()
            self._part = builder.sequence(tree, int(tree.state.flags))
        except (re.error, OverflowError, RecursionError) as error:
            raise NotMatchable(
                f"is not a valid regular expression ({error}); escape special characters with a backslash"
            ) from error
        self.cost = builder.cost + self._part.steps
        if self.cost > COST_MAX:
            raise NotMatchable(_too_costly(pattern))

    def matches(self, text: Text) -> bool:
        return bool(self._part.ends(1, text) & text.end)


class Text:
    """A text, and the positions where characters and anchors match; a set of positions is an integer, bit by bit.

    Attributes:
        everywhere: All positions, from before the first character to after the last one.
        end: The last of them.
    """

    __slots__ = ("_any", "_characters", "_found", "_text", "end", "everywhere")

    def __init__(self, text: str) -> None:
        if len(text) > TEXT_MAX_CHARS:
            raise ValueError(f"the text is {len(text)} characters long; the maximum is {TEXT_MAX_CHARS}")
        self._text = text
        self._found: dict[re.Pattern[str], int] = {}
        self._characters: dict[str, int] = {}
        for place, char in enumerate(text):
            self._characters[char] = self._characters.get(char, 0) | 1 << place
        self.end = 1 << len(text)
        self.everywhere = 2 * self.end - 1
        self._any = (self.end - 1) & ~self._characters.get("\n", 0)

    def where(self, single: _One) -> int:
        """The positions where it matches."""
        if single is None:
            return self._any
        if isinstance(single, str):
            return self._characters.get(single, 0)
        found = self._found.get(single)
        if found is None:
            found = self._found[single] = sum(1 << match.start() for match in single.finditer(self._text))
        return found

    def reversed(self, places: int) -> int:
        return int(f"{places:0{len(self._text) + 1}b}"[::-1], 2)


class _Part(Protocol):
    """A piece of a pattern.

    Attributes:
        steps: The most elementary steps of `ends` or `starts`.
        width: The fewest characters it matches.
    """

    @property
    def steps(self) -> int: ...
    @property
    def width(self) -> int: ...

    def ends(self, starts: int, text: Text) -> int:
        """The positions where it may end if it begins at one of `starts`."""
        ...

    def starts(self, ends: int, text: Text) -> int:
        """The positions where it may begin if it ends at one of `ends`."""
        ...


@dataclass(frozen=True, slots=True)
class _Single:
    """One character (width 1) or an anchor (width 0)."""

    single: _One
    width: int
    steps: int = 1

    def ends(self, starts: int, text: Text) -> int:
        return (starts & text.where(self.single)) << self.width

    def starts(self, ends: int, text: Text) -> int:
        return ends >> self.width & text.where(self.single)


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Part, ...]
    width: int
    steps: int

    def ends(self, starts: int, text: Text) -> int:
        for part in self.parts:
            if not starts:
                break
            starts = part.ends(starts, text)
        return starts

    def starts(self, ends: int, text: Text) -> int:
        for part in reversed(self.parts):
            if not ends:
                break
            ends = part.starts(ends, text)
        return ends


@dataclass(frozen=True, slots=True)
class _Branch:
    parts: tuple[_Part, ...]
    width: int
    steps: int

    def ends(self, starts: int, text: Text) -> int:
        found = 0
        for part in self.parts:
            found |= part.ends(starts, text)
        return found

    def starts(self, ends: int, text: Text) -> int:
        found = 0
        for part in self.parts:
            found |= part.starts(ends, text)
        return found


@dataclass(frozen=True, slots=True)
class _Repeat:
    """The body `least` times, and up to `more` times more."""

    body: _Part
    least: int
    more: int
    width: int
    steps: int

    def ends(self, starts: int, text: Text) -> int:
        return self._repeated(self.body.ends, starts, text)

    def starts(self, ends: int, text: Text) -> int:
        return self._repeated(self.body.starts, ends, text)

    def _repeated(self, once: Callable[[int, Text], int], places: int, text: Text) -> int:
        for _ in range(self.least):
            if not places:
                return 0
            places = once(places, text)
        # Only new positions lead to new ones, so this ends once all were seen.
        new = places
        for _ in range(self.more):
            if not new:
                break
            new = once(new, text) & ~places
            places |= new
        return places


@dataclass(frozen=True, slots=True)
class _Run:
    """One character any number of times, by the carry of an addition that runs through its positions."""

    single: _One
    width: int = 0
    steps: int = _RUN_STEPS

    def ends(self, starts: int, text: Text) -> int:
        return _run(text.where(self.single), starts)

    def starts(self, ends: int, text: Text) -> int:
        return text.reversed(_run(text.reversed(text.where(self.single) << 1), text.reversed(ends)))


def _run(through: int, places: int) -> int:
    return places | ((places & through) + through ^ through)


@dataclass(frozen=True, slots=True)
class _Look:
    body: _Part
    behind: bool
    wanted: bool
    steps: int
    width: int = 0

    def ends(self, starts: int, text: Text) -> int:
        look = self.body.ends if self.behind else self.body.starts
        found = look(text.everywhere, text)
        return starts & found if self.wanted else starts & ~found

    def starts(self, ends: int, text: Text) -> int:
        return self.ends(ends, text)


class _Builder:
    """Builds parts from Python's parse tree; `cost` grows by what compiling them takes."""

    def __init__(self) -> None:
        self.cost = 1
        self._classes: set[tuple[str, int]] = set()

    def sequence(self, items: Any, flags: int) -> _Part:
        parts = tuple(self._part(str(operation), argument, flags) for operation, argument in items)
        if len(parts) == 1:
            return parts[0]
        return _Sequence(parts, sum(part.width for part in parts), 1 + sum(part.steps for part in parts))

    def _part(self, operation: str, argument: Any, flags: int) -> _Part:
        match operation:
            case "LITERAL" if not flags & re.IGNORECASE:
                return _Single(chr(argument), 1)
            case "ANY" if not flags & re.DOTALL:
                return _Single(None, 1)
            case "LITERAL" | "NOT_LITERAL" | "ANY":
                return self._class(_class_text(operation, argument), flags, 1)
            case "IN":
                return self._class(_class_text(operation, argument), flags, 1, _range_characters(argument))
            case "AT":
                return self._class(_ANCHORS[str(argument)], flags, 0)
            case "SUBPATTERN":
                _, added, removed, body = argument
                if added & (re.ASCII | re.UNICODE):
                    flags &= ~(re.ASCII | re.UNICODE)
                return self.sequence(body, (flags | added) & ~removed)
            case "BRANCH" | "FAILURE":  # the latter has no branch
                branches = argument[1] if operation == "BRANCH" else ()
                parts = tuple(self.sequence(branch, flags) for branch in branches)
                width = min((part.width for part in parts), default=0)
                return _Branch(parts, width, 1 + sum(part.steps for part in parts))
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, body = argument
                return _repeat(self.sequence(body, flags), int(least), int(most))
            case "ASSERT" | "ASSERT_NOT":
                direction, body = argument
                narrow, wide = body.getwidth()
                if direction < 0 and narrow != wide:
                    raise NotMatchable("has a look-behind without a fixed length; write it without (?<")
                part = self.sequence(body, flags)
                return _Look(part, direction < 0, operation == "ASSERT", 1 + part.steps)
            case "GROUPREF" | "GROUPREF_EXISTS":
                raise NotMatchable("refers back to a group, which quota files do not support; write it out")
            case _:  # ATOMIC_GROUP, POSSESSIVE_REPEAT, and what newer versions of Python add
                raise NotMatchable("has a possessive or atomic part like a*+ or (?>a); write it without")

    def _class(self, text: str, flags: int, width: int, characters: int = 0) -> _Part:
        if (text, flags) not in self._classes:
            self._classes.add((text, flags))
            self.cost += _CLASS_STEPS + characters // _CHARACTERS_PER_STEP
        if self.cost > COST_MAX:
            raise NotMatchable("has too many or too large character classes; use smaller ranges, or \\w, \\d or .")
        return _Single(re.compile(text, flags & _FLAGS), width)


def _repeat(body: _Part, least: int, most: int) -> _Part:
    if isinstance(body, _Single) and body.width and most > TEXT_MAX_CHARS:
        run = _Run(body.single)
        if not least:
            return run
        first = _repeat(body, least, least)
        return _Sequence((first, run), first.width, 1 + first.steps + run.steps)
    # More rounds than a text has characters include an empty one, which may repeat, so a larger number changes nothing.
    least = min(least, TEXT_MAX_CHARS + 1)
    more = min(max(most - least, 0), TEXT_MAX_CHARS)
    rounds = least + more
    if body.width:  # each round advances, and one that finds nothing is the last
        rounds = min(rounds, TEXT_MAX_CHARS // body.width + 1)
    return _Repeat(body, least, more, least * body.width, 1 + rounds * (1 + body.steps))


_TOKEN = re.compile(
    r"""\\.                                               # an escaped character
    | \[ \^? \]? (?: \\. | [^\]\\] )* \]                   # a class
    | \(\?\#[^)]*\) | \(\?[a-zA-Z]+\)                     # a comment, or flags for the whole pattern
    | (?P<open> \( (?: \? (?: P<\w+> | <?[=!] | [a-zA-Z-]*: ) )? )
    | (?P<close> \) )
    | (?P<repetition> (?: [*+] | \{ (?!\}) \d* (?: ,\d* )? \} ) \?? )
    | .""",
    re.VERBOSE | re.DOTALL,
)


def _too_costly(pattern: str) -> str:
    """Why a pattern takes too many steps, with the part that repeats most, and what to write instead.

    Scans the text again, because the parser does not keep positions.
    """
    # The depth of nested repetitions, and the text of the outermost one.
    deepest = 0, ""
    # Start and depth of each open group; the pattern itself is the first.
    groups = [(0, 0)]
    start = depth = 0
    for token in _TOKEN.finditer(pattern):
        match token.lastgroup:
            case "open":
                groups.append((token.start(), 0))
                continue
            case "close" if len(groups) > 1:
                start, depth = groups.pop()
            case "repetition":
                depth += 1
                deepest = max(deepest, (depth, pattern[start : token.end()]), key=lambda found: found[0])
            case _:
                start, depth = token.start(), 0
        groups[-1] = groups[-1][0], max(groups[-1][1], depth)
    depth, part = deepest
    if depth > 1:
        return (
            f"takes too long to match: {part!r} repeats a repetition (* + or {{ }}). Repeat once, like a+ instead of "
            "(a+)+, or list the users"
        )
    many = f"too many repetitions, like {part!r}" if part else "too many parts"
    return f"takes too long to match: it has {many}. Split it into several patterns, or list the users"


def _class_text(operation: str, argument: Any) -> str:
    """A pattern for one character; every character in it is escaped."""
    if operation == "ANY":
        return "."
    if operation == "LITERAL":
        return _escaped(argument)
    if operation == "NOT_LITERAL":
        return f"[^{_escaped(argument)}]"
    return f"[{''.join(_class_items(argument))}]"


def _class_items(items: Any) -> Iterator[str]:
    for operation, argument in items:
        match str(operation):
            case "NEGATE":
                yield "^"
            case "RANGE":
                yield f"{_escaped(argument[0])}-{_escaped(argument[1])}"
            case "CATEGORY":
                yield _CATEGORIES[str(argument)]
            case _:
                yield _escaped(argument)


def _escaped(code: int) -> str:
    return f"\\U{code:08x}"


def _range_characters(items: Any) -> int:
    return sum(argument[1] - argument[0] for operation, argument in items if str(operation) == "RANGE")
