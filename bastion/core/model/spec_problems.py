"""What is wrong with a job spec, in words for its writer: pydantic's name its own classes, and Python's types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

_SHOWN_MAX = 5
_OBJECT = "must be an object: {...}"
_INTEGER = "must be a whole number"
# By pydantic's type of the problem; what is not here keeps pydantic's words.
_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "missing": lambda _: "is missing",
    "model_type": lambda _: _OBJECT,
    "dict_type": lambda _: _OBJECT,
    "list_type": lambda _: "must be a list: [...]",
    "string_type": lambda _: 'must be a string: "..."',
    "int_type": lambda _: _INTEGER,
    "int_from_float": lambda _: _INTEGER,
    "greater_than_equal": lambda limit: f"must be at least {limit['ge']}",
    "less_than_equal": lambda limit: f"must be at most {limit['le']}",
    "literal_error": lambda known: f"must be {known['expected']}",
    "too_long": lambda size: f"has {size['actual_length']} entries; the maximum is {size['max_length']}",
    "string_too_short": lambda _: "must not be empty",
    "string_too_long": lambda size: f"must have at most {size['max_length']} characters",
    "string_pattern_mismatch": lambda _: "has a character that is not allowed there",
}


def explain(error: ValidationError) -> str:
    """Return the first five problems, each with the path of its field."""
    problems = []
    for item in error.errors(include_url=False, include_input=False)[:_SHOWN_MAX]:
        words = _WORDS.get(item["type"])
        said = item["msg"].removeprefix("Value error, ") if words is None else words(item.get("ctx", {}))
        where = ".".join(str(part) for part in item["loc"]) or "the document"
        problems.append(f"{where[:120]}: {said[:200]}")
    more = error.error_count() - len(problems)
    return "; ".join(problems) + (f"; {more} more" if more > 0 else "")
