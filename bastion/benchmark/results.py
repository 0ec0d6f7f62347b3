"""What a job measured: the values in its hosts' stored results, and what in them cannot be understood.

Two forms of lines: JSON, `{"metric": "seconds", "value": 1.5, "step": 10, "unit": "s"}`, of which the first two are
needed; and MLPerf's `:::MLLOG {...}` (`bastion.benchmark.mllog`). Nothing here fails because of what a job wrote.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from bastion.benchmark import mllog
from bastion.benchmark.collect import JobValues
from bastion.benchmark.layout import Value
from bastion.client.concurrently import concurrently
from bastion.core import documents, limits
from bastion.core.bucket import keys, result_proofs
from bastion.core.bucket.keys import Run
from bastion.core.bucket.result_proofs import UnprovedResults
from bastion.core.bucket.results import Environment, HostResults
from bastion.core.errors import InvalidDocument, NotFound, ObjectTooLarge, StoreError
from bastion.core.model.run_public_keys import RunPublicKeys
from bastion.core.plurals import count
from bastion.ports import ObjectStore

_UNIT_MAX_CHARS = 32
_CONNECTIONS = 16
# Keys, values and containers of a line.
_LINE_MAX_VALUES = 1000
# The others are only counted.
_PROBLEMS_SHOWN = 5
_SHOWN_CHARS = 80
_REASON_CHARS = 240


@dataclass(slots=True)
class Values:
    """The values of one host, in the order in which they were written.

    Attributes:
        units: As the job told them, by metric.
        problems: With the numbers of lines.
    """

    values: dict[str, list[Value]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, metric: str, value: float, step: int | None, unit: str | None) -> str:
        """Add a value; return what is wrong with it, and then it is not added."""
        if unit is not None and self.units.setdefault(metric, unit) != unit:
            return f"{metric} is in {unit}, but an earlier line says {self.units[metric]}"
        self.values.setdefault(metric, []).append(Value(value=value, step=step))
        return ""


def read_values(store: ObjectStore, job: str, hosts: int, public_keys: RunPublicKeys) -> JobValues:
    """Read what the hosts of a job stored, as far as its runs prove it. Raises StoreError."""
    uid = public_keys.uid
    prefix = keys.results_of(job, uid)
    numbers = {meta.key.removeprefix(prefix) for meta in store.list(prefix)}
    known = [host for host in range(hosts) if str(host) in numbers]
    calls = [
        partial(store.get, keys.results(job, uid, host), max_bytes=limits.RESULTS_DOCUMENT_MAX_BYTES) for host in known
    ]
    found: dict[int, HostResults] = {}
    problems = []
    for host, answer in zip(known, concurrently(calls, connections=_CONNECTIONS), strict=True):
        if isinstance(answer, NotFound):
            continue
        try:
            if isinstance(answer, StoreError):
                raise answer
            key = keys.results(job, uid, host)
            found[host] = result_proofs.read(key, answer.data, lambda attempt: public_keys.proving(Run(uid, attempt)))
        except ObjectTooLarge:
            problems.append(
                f"the results of host {host} are larger than the {limits.RESULTS_DOCUMENT_MAX_BYTES >> 20} MiB that a "
                "host writes; someone else wrote them"
            )
        except UnprovedResults as error:
            problems.append(f"the results of host {host} {error}; run the benchmark again")
        except InvalidDocument as error:
            problems.append(f"the results of host {host} are not readable: {str(error)[:_REASON_CHARS]}")
    together = of_hosts(found)
    return JobValues(
        values=together.values,
        units=together.units,
        environment=together.environment,
        problems=(*problems, *together.problems),
    )


def of_hosts(documents_of: Mapping[int, HostResults]) -> JobValues:
    """Put together what a job's hosts measured in its last try that ended well, or else in its last one (ADR 58)."""
    if not documents_of:
        return JobValues()
    counts = max(documents_of.values(), key=lambda each: (each.ended_well, each.order)).order
    hosts = {host: each for host, each in sorted(documents_of.items()) if each.order == counts}
    problems = [
        f"host {host} stored results of try {each.try_number} of attempt {each.attempt} last; they do not count"
        for host, each in sorted(documents_of.items())
        if each.order != counts
    ]
    values: dict[str, list[Value]] = {}
    units: dict[str, str] = {}
    for host, each in hosts.items():
        parsed = parse(each)
        who = f"host {host}: " if len(hosts) > 1 else ""
        problems += [who + problem for problem in _shortened(parsed.problems)]
        for metric, found in parsed.values.items():
            unit = parsed.units.get(metric)
            if unit is not None and units.setdefault(metric, unit) != unit:
                problems.append(f"host {host}: {metric} is in {unit}, but another host says {units[metric]}")
                continue
            # The values of several hosts must stay in step: those of the warmup are the first of each host.
            values.setdefault(metric, []).extend(_numbered(found) if len(hosts) > 1 else found)
    environment, different = _environment(hosts)
    return JobValues(values=values, units=units, environment=environment, problems=(*problems, *different))


def parse(document: HostResults) -> Values:
    """Read the lines of one host."""
    found = Values(problems=list(document.problems))
    for number, line in enumerate(document.lines, start=1):
        if line.strip():
            problem = _parse_line(line, found)
            if problem:
                found.problems.append(f"line {number} of the results: {problem}")
    for event in mllog.events(document.mllog):
        problem = event.problem or found.add(event.metric, event.value, event.step, event.unit)
        if problem:
            found.problems.append(f"MLLOG line {event.line}: {problem}")
    return found


def _parse_line(line: str, found: Values) -> str:
    """Add the value of a line; return what is wrong with it."""
    try:
        document = documents.loads(line.encode(), max_values=_LINE_MAX_VALUES)
    except documents.DocumentError as error:
        return f"{error} ({_shown(line)})"
    if not isinstance(document, dict):
        return f'it is no object like {{"metric": "seconds", "value": 1.5}} ({_shown(line)})'
    metric, value, step, unit = (document.get(name) for name in ("metric", "value", "step", "unit"))
    if not isinstance(metric, str):
        return f'it has no "metric", the name of what was measured ({_shown(line)})'
    if not mllog.is_metric(metric):
        return (
            f"{_shown(metric)!r} is not a valid name of a metric; use at most 64 letters, digits, '_', '.' and '-', "
            "with a letter or '_' at the beginning"
        )
    number = _finite(value)
    if number is None:
        return f"the value of {metric} is {_shown(str(value))}, not a number"
    if step is not None and (not isinstance(step, int) or isinstance(step, bool) or step < 0):
        return f"the step of {metric} is {_shown(str(step))}, not a whole number from 0"
    if unit is not None and (not isinstance(unit, str) or len(unit) > _UNIT_MAX_CHARS):
        return f"the unit of {metric} is not a text of at most {_UNIT_MAX_CHARS} characters"
    return found.add(metric, number, step, unit)


def _finite(value: object) -> float | None:
    """The value as a number; None if it is none."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _numbered(values: Sequence[Value]) -> Sequence[Value]:
    if len(values) == 1 or any(each.step is not None for each in values):
        return values
    return [Value(value=each.value, step=number) for number, each in enumerate(values, start=1)]


def _environment(hosts: Mapping[int, HostResults]) -> tuple[Environment, list[str]]:
    """The environment of all hosts together, and in what they differ."""
    first, *others = hosts
    base = hosts[first].environment.model_dump()
    problems = []
    for host in others:
        here = hosts[host].environment.model_dump()
        differ = [name for name, value in here.items() if name != "place" and value != base[name]]
        if differ:
            problems.append(f"the environments of hosts {first} and {host} differ: {', '.join(differ)}")
    places = {each.environment.place for each in hosts.values()}
    return Environment(**{**base, "place": ", ".join(sorted(filter(None, places)))}), _shortened(problems)


def _shortened(problems: Sequence[str]) -> list[str]:
    more = len(problems) - _PROBLEMS_SHOWN
    return [*problems[:_PROBLEMS_SHOWN], *([f"{count(more, 'more problem')}"] if more > 0 else [])]


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
