"""Reads JSON that anybody may have written: what is absent or of the wrong type is empty; nothing raises."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

TEXT_MAX_CHARS = 500
NOTHING: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class Word:
    """A condition's or status's reason and message; both may be empty."""

    reason: str = ""
    message: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.reason, self.message)))


NO_WORD: Final = Word()


def conditions(item: Mapping[str, Any]) -> dict[str, Word]:
    """Return the conditions that are true, by type."""
    given = mappings(mapping(item.get("status")).get("conditions"))
    return {text(each.get("type")): word(each) for each in given if each.get("status") == "True"}


def since(item: Mapping[str, Any], condition: str) -> str:
    """Return when a condition became true; empty if it is not, or does not say."""
    given = mappings(mapping(item.get("status")).get("conditions"))
    found = (each for each in given if each.get("type") == condition and each.get("status") == "True")
    return text(next(found, NOTHING).get("lastTransitionTime"))


def word(document: Mapping[str, Any]) -> Word:
    reason, message = text(document.get("reason")), text(document.get("message"))
    return Word(sys.intern(reason), message[:TEXT_MAX_CHARS]) if reason or message else NO_WORD


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else NOTHING


def mappings(value: object) -> Sequence[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else ()


def text(value: object) -> str:
    return value if isinstance(value, str) else ""


def count(value: object) -> int:
    """Return a number of replicas; absent: 1, the API's default."""
    return value if isinstance(value, int) and value > 0 else 1


def number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 9 else 0


def tally(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def seconds(text: str) -> float | None:
    return float(text) if text.isdecimal() and len(text) < 12 else None


def instant(text: str) -> float:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return 0.0
