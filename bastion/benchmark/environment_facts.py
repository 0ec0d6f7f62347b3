"""What must be equal on both sides of a comparison, besides the place. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from bastion.benchmark.measurements import JobMeasurement
from bastion.core.bucket.results import Environment
from bastion.core.errors import Refused
from bastion.core.plurals import count

PLACE = "place"
# Facts whose keys are `libraries.jax` and the like; allowing `libraries` allows all of them.
_TABLES = ("libraries", "variables")
_FACTS = tuple(name for name in Environment.model_fields if name not in (*_TABLES, PLACE))
_SHOWN_CELLS = 3
_VALUE_CHARS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentDifference:
    """A fact that differs between the two sides of some cells."""

    key: str
    baseline: str
    candidate: str
    cells: Sequence[str]

    @property
    def where(self) -> str:
        shown = ", ".join(self.cells[:_SHOWN_CELLS])
        more = len(self.cells) - _SHOWN_CELLS
        return f"{shown} and {more} more" if more > 0 else shown


def check_keys(allowed: Collection[str]) -> None:
    """Raise Refused if a key to allow is not the name of a fact."""
    for key in allowed:
        table, _, name = key.partition(".")
        if key != PLACE and key not in _FACTS and not (table in _TABLES and (name or "." not in key)):
            known = ", ".join([*_FACTS, *(f"{each}[.NAME]" for each in _TABLES), PLACE])
            raise Refused(f"{key!r} is not a fact of an environment; use one of {known}")


def is_allowed(key: str, allowed: Collection[str]) -> bool:
    return key in allowed or key.partition(".")[0] in allowed


def same_mix(first: Counter[str], second: Counter[str]) -> bool:
    """Whether both sides have the same shares of everything, up to less than one job of the smaller side."""
    whole = min(first.total(), second.total())
    return all(
        abs(first[each] * second.total() - second[each] * first.total()) * whole < first.total() * second.total()
        for each in {*first, *second}
    )


def differences(
    sides: Sequence[tuple[str, Sequence[JobMeasurement], Sequence[JobMeasurement]]],
) -> list[EnvironmentDifference]:
    """Return what differs, given each cell's name and its jobs in the baseline and in the candidate."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for cell, baseline, candidate in sides:
        if not baseline or not candidate:
            continue
        facts = [[dict(_facts(job.environment)) for job in jobs] for jobs in (baseline, candidate)]
        for key in dict.fromkeys(key for side in facts for each in side for key in each):
            first, second = (Counter(each.get(key, "") for each in side) for side in facts)
            if not same_mix(first, second):
                found.setdefault((key, _shown(first), _shown(second)), []).append(cell)
    return [
        EnvironmentDifference(key=key, baseline=first, candidate=second, cells=cells)
        for (key, first, second), cells in sorted(found.items())
    ]


def _facts(environment: Environment) -> Iterator[tuple[str, str]]:
    for name in _FACTS:
        yield name, str(getattr(environment, name))
    for table in _TABLES:
        for name, value in getattr(environment, table).items():
            yield f"{table}.{name}", value


def _shown(values: Counter[str]) -> str:
    texts = [(value[:_VALUE_CHARS] or "unknown", number) for value, number in sorted(values.items())]
    if len(texts) == 1:
        return texts[0][0]
    return ", ".join(f"{text} ({count(number, 'job')})" for text, number in texts)
