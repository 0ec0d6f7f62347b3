"""Numbers with their nouns."""

from __future__ import annotations


def count(number: object, noun: str) -> str:
    """`1 host`, `4 hosts`."""
    return f"{number} {noun}{'' if str(number) == '1' else 's'}"
