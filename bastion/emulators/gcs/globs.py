"""Patterns of object names (`matchGlob`): `*` and `?` match within slashes, `**` across; sets and alternatives.

Uses an automaton, because Python's `re` backtracks: a glob with a few stars could block the endpoint for minutes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from bastion.emulators.gcs.resources import InvalidRequest

_GLOB_MAX_CHARS = 1024
# Cached steps of one glob; all are dropped when full.
_STEPS_MAX = 4096

# What one character of a name must be.
_Takes = Callable[[str], object]
_States = frozenset[int]


def _any(_character: str) -> bool:
    return True


def _no_slash(character: str) -> bool:
    return character != "/"


class Glob:
    """A parsed pattern. Raises InvalidRequest if a bracket is not closed, or the pattern is too long.

    A program of steps: each takes one character and continues with the next step, or takes none and continues with all
    steps that it names. The step after the last is the end.
    """

    def __init__(self, glob: str) -> None:
        if len(glob) > _GLOB_MAX_CHARS:
            raise InvalidRequest(f"The glob has {len(glob)} characters; the maximum is {_GLOB_MAX_CHARS}.")
        self._steps: list[_Takes | list[int]] = []
        self._read(glob)
        self._start = self._reached([0])
        self._known: dict[tuple[_States, str], _States] = {}

    def fullmatch(self, name: str) -> bool:
        states = self._start
        for character in name:
            following = self._known.get((states, character))
            if following is None:
                following = self._reached(state + 1 for state in states if self._takes(state, character))
                if len(self._known) >= _STEPS_MAX:
                    self._known.clear()
                self._known[states, character] = following
            states = following
            if not states:
                return False
        return len(self._steps) in states

    def _takes(self, state: int, character: str) -> bool:
        step = self._steps[state] if state < len(self._steps) else None
        return callable(step) and bool(step(character))

    def _reached(self, states: Iterable[int]) -> _States:
        """The states that take a character, and the end, reachable from these without input."""
        reached: set[int] = set()
        seen: set[int] = set()
        pending = list(states)
        while pending:
            state = pending.pop()
            if state in seen:
                continue
            seen.add(state)
            step = self._steps[state] if state < len(self._steps) else None
            if isinstance(step, list):
                pending += step
            else:
                reached.add(state)
        return frozenset(reached)

    def _read(self, glob: str) -> None:
        steps = self._steps
        # For each open brace: where its alternatives begin, and the steps that continue after it.
        braces: list[tuple[list[int], list[list[int]]]] = []
        position = 0
        while position < len(glob):
            character = glob[position]
            position += 1
            match character:
                case "*":
                    both = glob.startswith("*", position)
                    position += both
                    again = len(steps)
                    steps += [[again + 1, again + 3], _any if both else _no_slash, [again]]
                case "?":
                    steps.append(_no_slash)
                case "[":
                    position, members = _set(glob, position)
                    steps.append(members)
                case "{":
                    beginnings = [len(steps) + 1]
                    steps.append(beginnings)
                    braces.append((beginnings, []))
                case "," | "}" if braces:
                    beginnings, endings = braces[-1]
                    ending: list[int] = []
                    steps.append(ending)
                    endings.append(ending)
                    if character == ",":
                        beginnings.append(len(steps))
                        continue
                    braces.pop()
                    for ending in endings:
                        ending.append(len(steps))
                case "\\" if position < len(glob):
                    steps.append(glob[position].__eq__)
                    position += 1
                case _:
                    steps.append(character.__eq__)
        if braces:
            raise _unclosed(glob, "{")


@lru_cache(maxsize=256)
def compiled(glob: str) -> Glob:
    return Glob(glob)


def _set(glob: str, position: int) -> tuple[int, _Takes]:
    """Parse the set that begins before `position`; return its end and what it takes."""
    negated = position < len(glob) and glob[position] in "!^"
    start = position + negated
    # A bracket at the beginning of a set is a member.
    end = glob.find("]", start + 1)
    if end < 0:
        raise _unclosed(glob, "[")
    members = re.sub(r"[\\\[\]^&~|]", r"\\\g<0>", glob[start:end])
    try:
        pattern = re.compile(f"[^/{members}]" if negated else f"[{members}]")
    except re.error as error:
        raise InvalidRequest(f"Invalid glob {glob[:80]!r}: {error}.") from error
    return end + 1, pattern.fullmatch


def _unclosed(glob: str, bracket: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid glob {glob[:80]!r}: a {bracket} is not closed.")
