"""Read `bench.toml`, or say by line what is wrong with it, why, and what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tomli
from pydantic import BaseModel, ValidationError

from bastion.benchmark import file, matrix
from bastion.benchmark.file import Benchmark
from bastion.core import limits
from bastion.core.errors import Refused
from quota.lines import Lines

_PROBLEMS_MAX = 10
# Python refuses to read or print longer ones.
_LONG_NUMBER = re.compile(r"[0-9]{400}")


class BenchmarkFileError(Refused):
    """The file cannot be used; one line per problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


def read(data: bytes) -> Benchmark:
    """Read the file; raises BenchmarkFileError."""
    text, document = _parse(data)
    lines = Lines(text)
    try:
        found = file.made(data, file.File.model_validate(document))
    except ValidationError as error:
        raise BenchmarkFileError(_explained(error, document, lines)) from error
    problems = matrix.problems(found)
    if problems:
        raise BenchmarkFileError([_at(lines.of(*path), message) for path, message in problems[:_PROBLEMS_MAX]])
    return found


def _parse(data: bytes) -> tuple[str, dict[str, Any]]:
    if len(data) > limits.BENCHMARK_FILE_MAX_BYTES:
        raise BenchmarkFileError(
            [f"the file is longer than the maximum of {limits.BENCHMARK_FILE_MAX_BYTES} bytes; shorten it"]
        )
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
        if _LONG_NUMBER.search(text):
            raise BenchmarkFileError(["a number is too long; correct it"])
        return text, tomli.loads(text)
    except UnicodeDecodeError as error:
        raise BenchmarkFileError(["the file is not UTF-8 text; save it as UTF-8"]) from error
    except (ValueError, RecursionError) as error:
        what = str(error)[:300] or "it nests too deeply"
        raise BenchmarkFileError([f"the file is not valid TOML: {what}; correct the syntax"]) from error


def _explained(error: ValidationError, document: Mapping[str, Any], lines: Lines) -> list[str]:
    found: list[str] = []
    for detail in error.errors(include_url=False):
        path = _in_the_file(detail["loc"], document)
        message = _at(lines.of(*path), _message(detail["type"], path, detail["msg"]))
        # A value with two possible forms is reported once.
        if not any(each.partition(" is ")[0] == message.partition(" is ")[0] for each in found):
            found.append(message)
    return found[:_PROBLEMS_MAX]


def _message(kind: str, path: Sequence[str | int], message: str) -> str:
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")[:120]
    last = str(path[-1]) if path else ""
    if kind == "missing":
        return f"{name} is missing{_ADVICE.get(name, '; add it')}"
    if kind == "extra_forbidden":
        known = _known_keys(path[:-1])
        near = difflib.get_close_matches(last, known, n=1)
        return f"{name} is not a valid key; " + (f"did you mean {near[0]}?" if near else f"use {', '.join(known)}")
    if kind == "too_short" and name == "metrics":
        return f"metrics is empty{_ADVICE['metrics']}"
    if kind == "value_error":
        return f"{name} {message.removeprefix('Value error, ')}"
    if path[:1] == ("metrics",) and kind.startswith("string_") and len(path) == 2:
        return (
            f"metrics.{last[:40]!r} is not a valid name of a metric; use letters, digits, '_', '.' and '-', with a "
            "letter or '_' first"
        )
    if kind == "too_short":
        return f"{name} is empty; give it a value, or remove it"
    return f"{name} is not valid: {message[0].lower()}{message[1:]}; correct it"


_ADVICE = {
    "metrics": '; there is nothing to compare without one: add [metrics.NAME] with unit = "s" and better = "lower"',
    "run": '; add [run] with command, instance_type and max_run = "20m"',
    "run.max_run": '; it ends a job that hangs, and bounds what the run costs: add max_run = "20m"',
    "name": '; add name = "my-benchmark"',
}


def _at(line: int | None, message: str) -> str:
    return f"line {line}: {message}" if line else message


def _in_the_file(place: Sequence[str | int], document: Any) -> tuple[str | int, ...]:
    """Return the part of pydantic's path that the file has, and the key that is missing there."""
    path: list[str | int] = []
    # pydantic marks a key that is not valid itself.
    for part in place if "[key]" not in place else place[: place.index("[key]")]:
        if isinstance(document, Mapping):
            path.append(part)
            if part not in document:
                break
            document = document[str(part)]
        elif isinstance(document, list) and isinstance(part, int):
            path.append(part)
            document = document[part] if part < len(document) else None
    return tuple(path)


def _known_keys(path: Sequence[str | int]) -> list[str]:
    model: type[BaseModel] = file.File
    tables: dict[str, type[BaseModel]] = {
        "run": file.Run,
        "environment": file.Environment,
        "budget": file.Budget,
        "metrics": file.Metric,
    }
    if path:
        model = tables.get(str(path[0]), file.File)
    return list(model.model_fields)
