"""The cells of a benchmark, and the order of their jobs. Pure.

Repeats are jobs of their own, in rounds: each round has every cell once, in an order drawn from the seed, so that drift
of the machines hits all cells alike.
"""

from __future__ import annotations

import itertools
import math
import random
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from bastion.benchmark.file import EXCLUDE, Benchmark, shown_value
from bastion.benchmark.layout import Variable
from bastion.core import limits

Problem = tuple[tuple[str | int, ...], str]
# `{{`, `}}`, `{variable}`, or a brace that is none of these.
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_SLUG_MAX_CHARS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One combination of values; `slug` is its name in keys."""

    slug: str
    variables: Mapping[str, Variable]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One job: the repeat of a cell, counted from 1. `after`: the index of the job whose end it awaits."""

    cell: Cell
    repeat: int
    after: int | None


def problems(benchmark: Benchmark) -> list[Problem]:
    """What is wrong with a file whose parts are valid."""
    found = [*_braces(benchmark), *_unused(benchmark), *_excludes(benchmark)]
    count = math.prod(len(values) for values in benchmark.matrix.values())
    if count > limits.BENCHMARK_CELLS_MAX * 10:
        found.append((("matrix",), _too_many_cells(count)))
    elif not found:
        found += _sizes(benchmark)
    return found


def _sizes(benchmark: Benchmark) -> list[Problem]:
    count = sum(1 for _ in _combinations(benchmark))
    if not count:
        return [(("matrix", EXCLUDE), "matrix.exclude leaves no cell; remove some of it")]
    if count > limits.BENCHMARK_CELLS_MAX:
        return [(("matrix",), _too_many_cells(count))]
    jobs = count * benchmark.repeats
    if jobs > limits.BENCHMARK_JOBS_MAX:
        return [
            (
                ("repeats",),
                f"{count} cells x {benchmark.repeats} repeats are {jobs} jobs; the maximum is "
                f"{limits.BENCHMARK_JOBS_MAX}; use fewer repeats, or fewer cells",
            )
        ]
    return []


def _too_many_cells(count: int) -> str:
    return (
        f"the matrix has {count} cells; the maximum is {limits.BENCHMARK_CELLS_MAX}; remove values, or split the "
        "benchmark into several files"
    )


def _texts(benchmark: Benchmark) -> list[tuple[tuple[str, ...], str]]:
    """Every text that may name variables."""
    run = benchmark.run
    texts: list[tuple[tuple[str, ...], str]] = [
        (("run", "command"), run.command),
        (("run", "instance_type"), run.instance_type),
        (("run", "setup"), run.setup or ""),
    ]
    if isinstance(run.num_replicas, str):
        texts.append((("run", "num_replicas"), run.num_replicas))
    return texts + [(("run", "env", name), text) for name, text in run.env.items()]


def _braces(benchmark: Benchmark) -> list[Problem]:
    found: list[Problem] = []
    for path, text in _texts(benchmark):
        where = ".".join(path)
        for match in _BRACES.finditer(text):
            if match[0] in ("{{", "}}") or match[1] in benchmark.matrix:
                continue
            if match[1] is not None and re.fullmatch(r"[A-Za-z0-9_]+", match[1]):
                known = ", ".join(benchmark.matrix) or "none"
                message = (
                    f"{where} names {match[0]}, but [matrix] has no variable {match[1]} (it has: {known}); add it, or "
                    f"write {{{match[0]}}} for the text {match[0]}"
                )
            else:
                message = (
                    f"{where} has {match[0][:40]!r}, which is no variable; write {{{{ and }}}} for braces of the "
                    "command line"
                )
            found.append((path, message))
    return found


def _unused(benchmark: Benchmark) -> list[Problem]:
    used = {match[1] for _, text in _texts(benchmark) for match in _BRACES.finditer(text)}
    return [
        (
            ("matrix", name),
            f"matrix.{name} is used nowhere, so its cells would all run the same; write {{{name}}} in run.command, or "
            "remove the variable",
        )
        for name in benchmark.matrix
        if name not in used
    ]


def _excludes(benchmark: Benchmark) -> list[Problem]:
    found: list[Problem] = []
    for number, table in enumerate(benchmark.exclude):
        path = ("matrix", EXCLUDE, number)
        unknown = next((name for name in table if name not in benchmark.matrix), None)
        if unknown is not None:
            found.append((path, f"matrix.exclude[{number}] names {unknown[:40]!r}, which is no variable; correct it"))
            continue
        wrong = next((name for name, value in table.items() if not _among(value, benchmark.matrix[name])), None)
        if wrong is not None or not table:
            what = f"{wrong} = {shown_value(table[wrong])}" if wrong else "an empty table"
            found.append((path, f"matrix.exclude[{number}] has {what}, which matches no cell; correct or remove it"))
    return found


def _among(value: Variable, values: Sequence[Variable]) -> bool:
    return any(_same(value, each) for each in values)


def _same(one: Variable, other: Variable) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _combinations(benchmark: Benchmark) -> list[dict[str, Variable]]:
    names = list(benchmark.matrix)
    found = (dict(zip(names, values, strict=True)) for values in itertools.product(*benchmark.matrix.values()))
    return [
        each
        for each in found
        if not any(all(_same(each[name], value) for name, value in table.items()) for table in benchmark.exclude)
    ]


def cells(benchmark: Benchmark) -> list[Cell]:
    """The cells in the file's order; slugs are unique."""
    combinations = _combinations(benchmark)
    plain = [_slug(each.values()) for each in combinations]
    count = Counter(slug.lower() for slug in plain)
    found = []
    for slug, each in zip(plain, combinations, strict=True):
        if count[slug.lower()] > 1 or len(slug) > _SLUG_MAX_CHARS:
            named = "\n".join(f"{name}={value!r}" for name, value in each.items())
            slug = f"{slug[:_SLUG_MAX_CHARS]}_{sha256(named.encode()).hexdigest()[:8]}"
        found.append(Cell(slug=slug, variables=each))
    return found


def _slug(values: Iterable[Variable]) -> str:
    texts = [re.sub(r"[^A-Za-z0-9.]+", "-", shown_value(value)).strip("-.") for value in values]
    return "_".join(text or "x" for text in texts) or "all"


def members(found: Sequence[Cell], *, repeats: int, parallel: int | None, seed: int) -> list[Member]:
    """The jobs in the order of their submission, in `parallel` chains; None: none waits for another."""
    drawn = random.Random(seed)
    order: list[tuple[Cell, int]] = []
    for repeat in range(1, repeats + 1):
        round_of = list(found)
        drawn.shuffle(round_of)
        order += [(cell, repeat) for cell in round_of]
    return [
        Member(cell=cell, repeat=repeat, after=None if parallel is None or index < parallel else index - parallel)
        for index, (cell, repeat) in enumerate(order)
    ]


def filled(text: str, variables: Mapping[str, Variable], *, quoted: bool) -> str:
    """Put the values into a text of the file; `quoted` for the shell."""

    def value_of(match: re.Match[str]) -> str:
        if match[0] in ("{{", "}}"):
            return match[0][0]
        value = shown_value(variables[match[1]])
        return shlex.quote(value) if quoted else value

    return _BRACES.sub(value_of, text)
