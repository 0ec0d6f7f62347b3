"""A request's query and path: parameters, flags, numbers, percent-encoding. Pure. Unknown parameters are ignored."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote_to_bytes

from bastion.storage_wire.refusals import invalid, invalid_parameter

_GENERATION_MAX = 2**63 - 1


class Query:
    """Query parameters; the last value of a repeated one counts."""

    __slots__ = ("_pairs", "_values")

    def __init__(self, query: str) -> None:
        try:
            self._pairs = parse_qsl(query, keep_blank_values=True, errors="strict") if query else []
        except ValueError as error:
            raise invalid("The query is not percent-encoded UTF-8.") from error
        self._values = dict(self._pairs)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str, default: str = "") -> str:
        return self._values.get(name, default)

    def all(self, name: str) -> list[str]:
        return [value for present, value in self._pairs if present == name]

    def flag(self, name: str) -> bool:
        return self._values.get(name, "").lower() == "true"

    def number(self, name: str) -> int | None:
        """Return a non-negative number, or None if absent."""
        value = self._values.get(name)
        if value is None or value == "":
            return None
        return natural_number(name, value)


def natural_number(name: str, value: str) -> int:
    """Parse a number from 0 to 2^63-1; raises Refusal (400)."""
    if not (value.isascii() and value.isdigit()) or len(value) > 19 or int(value) > _GENERATION_MAX:
        raise invalid_parameter(name, value[:80])
    return int(value)


def decoded(segment: str) -> str:
    """Decode a percent-encoded path segment, where `+` is a plus. Raises Refusal if it is not UTF-8."""
    if "%" not in segment and segment.isascii():
        return segment
    try:
        return unquote_to_bytes(segment.encode("latin-1")).decode()
    except UnicodeError as error:
        raise invalid("The path is not percent-encoded UTF-8.") from error
