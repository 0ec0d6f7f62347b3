"""Scenarios as text: read, simulated (`World`), and written with what happened.

A file begins with its intent in prose. Sections follow, each headed by its name, one item a line:

    world      tick=30s until=10m [deletion=30s] [slots=1]
    quota      pool v4=64 | v4=32              units per tier, the best first
               project a v4=1 [members=ann,bob-.*] [any rule of [project_rules], such as grace_seconds=30 fifo=true
               or borrowing_limit={v4=8}]      weights; without `members` everybody is a member
               all fifo=true                   rules of all projects
    jobs       NAME PROJECT v4=32 [at=2m] [runs=1h] [user=ann] [priority=1] [checkpoint=30m] [bastion=true]
               [running=1h] [tier=1] [evictions=7] [futile=2]
               `at`: when it is submitted, `-25h` for a day before the first tick; `runs`: how long its work takes (else
               it is endless); `running`: since when it runs at the first tick
    events     5m cancel NAME
               5m lose NAME for 2m             its nodes are lost, and it is tried again 2 minutes later
               5m stockout NAME for 2m         the same because the cloud has no more nodes
               5m hold | 5m release            of the whole pool
               5m pool ... | 5m project ... | 5m remove PROJECT      another quota file
    expected   what happens, tick by tick; only ticks in which something changes are shown

A stopped job is gone after its project's grace period and `deletion`. In `expected` a job that waits is shown when its
reason, whom it waits for or what it lacks changes; each tick ends with what the projects hold of their entitlements.

`BASTION_GOLDEN=rewrite python -m pytest tests/golden` writes what happens into the files; review it with `git diff`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import quota
from quota import Policy
from quota.rules_reading import KEYS
from scheduler import Decision, Job, JobStatus, Plan, Reason, RecentHoldings, UsageHistory, Verdict
from tests.support.world import World

# The first tick of every scenario.
BEGIN = 1_700_000_000.0
SECTIONS = ("world", "quota", "jobs", "events", "expected")
_DURATION = re.compile(r"(-?)(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


class ScenarioError(Exception):
    """The file does not follow the format."""


@dataclass(slots=True)
class QuotaText:
    """A quota file in its short form."""

    pool: tuple[str, ...] = ()
    projects: dict[str, tuple[str, ...]] = field(default_factory=dict)
    common: tuple[str, ...] = ()

    def change(self, words: list[str]) -> None:
        match words:
            case ["pool", *tiers]:
                self.pool = tuple(tiers)
            case ["project", name, *rest]:
                self.projects[name] = tuple(rest)
            case ["remove", name]:
                del self.projects[name]
            case ["all", *rules]:
                self.common = tuple(rules)
            case _:
                raise ScenarioError(f"no such line of a quota: {' '.join(words)}")

    def policy(self) -> Policy | None:
        """Read by the same code as every quota file; None if there is none."""
        if not self.pool:
            return None
        tiers = " ".join(self.pool).split("|")
        tables = [", ".join(tier.split()) for tier in tiers]
        lines = ["total_resources = [" + ", ".join(f"{{{table}}}" for table in tables) + "]"]
        lines += ["[toml-schema]", 'version = "1"', "[project_membership]"]
        weights, rules = [], ["[project_rules]", *self.common]
        for name, words in sorted(self.projects.items()):
            members = ".*"
            weights.append(f"[project_resources.{name}]")
            rules.append(f"[project_rules.{name}]")
            for word in words:
                key, _, value = word.partition("=")
                if key == "members":
                    members = value
                else:
                    (rules if key in KEYS else weights).append(word)
            lines.append(f"{name} = {json.dumps(members.split(','))}")
        return quota.load("\n".join([*lines, *weights, *rules]).encode())


@dataclass(slots=True)
class Scenario:
    """One file, read.

    Attributes:
        head: The text before what is expected.
    """

    head: str
    expected: str
    intent: str
    tick: float
    until: float
    deletion: float
    slots: int | None
    quota: QuotaText
    jobs: list[list[str]]
    events: list[tuple[float, list[str]]]


def read(text: str) -> Scenario:
    """Read a file; raise ScenarioError if it does not follow the format."""
    intent, sections = _sections(text)
    world = {key: value for line in sections["world"] for key, value in _pairs(line.split())}
    scenario = Scenario(
        head=text[: re.search(r"^expected$|\Z", text, re.MULTILINE).start()],  # type: ignore[union-attr]
        expected="".join(f"    {line}\n" if line else "\n" for line in sections["expected"]),
        intent=intent,
        tick=_seconds(world.pop("tick")),
        until=_seconds(world.pop("until")),
        deletion=_seconds(world.pop("deletion", "0s")),
        slots=int(slots) if (slots := world.pop("slots", None)) else None,
        quota=QuotaText(),
        jobs=[line.split() for line in sections["jobs"]],
        events=[(_seconds(line.split()[0]), line.split()[1:]) for line in sections["events"]],
    )
    if not intent or world or scenario.tick <= 0:
        raise ScenarioError(f"no intent, no tick, or unknown settings of the world: {world}")
    for line in sections["quota"]:
        scenario.quota.change(line.split())
    return scenario


def run(scenario: Scenario) -> str:
    """Simulate the scenario; return what happens, as text."""
    return "".join(f"    {line}\n" if line else "\n" for line in _Run(scenario).lines())


class _Run:
    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._quota = scenario.quota
        self._world = World(self._quota.policy(), BEGIN, self._stopping)
        self._recent, self._usage = RecentHoldings(), UsageHistory()
        self._held = False
        self._shown: dict[str, str] = {}
        self._coming = [self._job(words) for words in scenario.jobs]
        self._coming.sort(key=lambda entry: entry[0])  # stable: in the order of the file
        self._events = sorted(scenario.events, key=lambda entry: entry[0])

    def lines(self) -> Iterator[str]:
        ticks = int(self._scenario.until // self._scenario.tick)
        quiet = False
        for tick in range(ticks + 1):
            now = BEGIN + tick * self._scenario.tick
            happened = [f"{what:8} {name}" for what, name in self._world.events_until(now)]
            for line in happened:
                self._shown.pop(line.split()[1], None)
            happened += [*self._arrivals(now), *self._happenings(now)]
            decided = self._pass(now)
            if happened or decided:
                if quiet:
                    yield "..."
                yield _time(now - BEGIN)
                yield from (f"    {line}" for line in (*happened, *decided))
                yield f"    {self._holdings()}"
            quiet = not happened and not decided
        if quiet:
            yield f"until {_time(self._scenario.until)}"
            yield f"    {self._holdings()}"

    def _job(self, words: list[str]) -> tuple[float, Job, dict[str, float]]:
        """When it is submitted, the job, and its work as `World.submit` takes it."""
        name, project, *rest = words
        demand, fields = {}, {}
        for key, value in _pairs(rest):
            if key in _JOB_FIELDS:
                fields[key] = value
            elif value.isdigit():
                demand[key] = int(value)
            else:
                raise ScenarioError(f"job {name}: no such field: {key}={value}")
        running = fields.get("running")
        at = _seconds(fields.get("at", f"-{running}" if running else "0s"))
        work = {key: _seconds(fields[word]) for word, key in _WORK_FIELDS.items() if word in fields}
        job = Job(
            name=name,
            project_id=project,
            user_id=fields.get("user", "ann"),
            priority=int(fields.get("priority", 5)),
            queued_at=BEGIN + at,
            demand=demand,
            status=JobStatus.RUNNING if running else JobStatus.PENDING,
            tier=int(fields.get("tier", 0)) if running else None,
            charged=demand if running else {},
            started_at=BEGIN - _seconds(running) if running else None,
            on_bastion=fields.get("bastion") == "true",
            evictions=int(fields.get("evictions", 0)),
            futile_evictions=int(fields.get("futile", 0)),
        )
        return max(at, 0.0), job, work

    def _stopping(self, job: Job) -> float:
        policy = self._world.policy
        grace = policy.rules(job.project_id).grace_seconds if policy is not None else 0.0
        return grace + self._scenario.deletion

    def _arrivals(self, now: float) -> Iterator[str]:
        while self._coming and BEGIN + self._coming[0][0] <= now:
            _, job, work = self._coming.pop(0)
            self._world.submit(job, **work)
            what = "runs" if job.status is JobStatus.RUNNING else "arrives"
            priority = f", priority {job.priority}" if job.priority != 5 else ""
            yield f"{what:8} {job.name} ({job.project_id}, {_amounts(job.demand)}{priority})"

    def _happenings(self, now: float) -> Iterator[str]:
        while self._events and BEGIN + self._events[0][0] <= now:
            words = self._events.pop(0)[1]
            match words:
                case ["cancel", name]:
                    self._world.cancel(name)
                    self._shown.pop(name, None)
                case ["lose" | "stockout" as what, name, "for", pause]:
                    self._world.lose(name, now + _seconds(pause), stockout=what == "stockout")
                case ["hold" | "release" as what]:
                    self._held = what == "hold"
                case _:
                    self._quota.change(words)
                    self._world.policy = self._quota.policy()
            yield f"event    {' '.join(words)}"

    def _pass(self, now: float) -> list[str]:
        policy = self._world.policy
        jobs = self._world.jobs.values()
        plan = self._world.decide(
            held=self._held,
            bastion_slots=self._scenario.slots,
            held_recently=self._recent.note(jobs, now, policy) if policy else {},
            user_usage=self._usage.note(jobs, now, policy) if policy else {},
        )
        lines = []
        for decision in plan.decisions:
            text = _SHOW[decision.verdict](decision)
            if decision.verdict in (Verdict.KEEP, Verdict.STOPPING):
                self._shown.pop(decision.name, None)
            elif self._shown.get(decision.name) != text:
                self._shown[decision.name] = text
                lines.append(text)
        self._plan = plan
        return lines

    def _holdings(self) -> str:
        plan: Plan = self._plan
        stopping = Counter[tuple[str, str]]()
        for job in self._world.jobs.values():
            if job.status is JobStatus.STOPPING:
                stopping.update({(job.project_id, kind): amount for kind, amount in job.charged.items()})
        parts = []
        for project, usage in plan.projects.items():
            for kind in usage.entitlement:
                going = stopping[project, kind]
                parts.append(
                    f"{project} {usage.usage.get(kind, 0)}/{usage.entitlement[kind]}"
                    + (f" {kind}" if len(plan.pool) > 1 else "")
                    + (f" ({going} stopping)" if going else "")
                )
        free = [f"{use.free} {kind} free" for kind, use in plan.pool.items()]
        return "= " + (", ".join([*parts, *free]) or "no quota")


def _start(decision: Decision) -> str:
    tier = f" on tier {decision.tier}" if decision.tier else ""
    return f"start    {decision.name}{tier}: {decision.message.split(';')[0]}"


def _wait(decision: Decision) -> str:
    reason: Reason | None = decision.reason
    assert reason is not None
    parts = [reason.code.value]
    if reason.also:
        parts[0] += f" (also {', '.join(code.value for code in reason.also)})"
    if decision.position is not None:
        parts[0] += f" #{decision.position}"
    if reason.holders:
        parts.append(f"held by {', '.join(reason.holders)}")
    if reason.missing:
        parts.append(f"lacks {_amounts(reason.missing)}")
    if reason.over_limit:
        parts.append(f"over the limit by {_amounts(reason.over_limit)}")
    return f"wait     {decision.name}: {'; '.join(parts)}"


_SHOW: Mapping[Verdict, Callable[[Decision], str]] = {
    Verdict.START: _start,
    Verdict.EVICT: lambda decision: f"evict    {decision.name} for {decision.evicted_for}",
    Verdict.WAIT: _wait,
    Verdict.KEEP: lambda decision: "",
    Verdict.STOPPING: lambda decision: "",
}
_WORK_FIELDS = {"runs": "seconds", "checkpoint": "checkpoint"}
_JOB_FIELDS = (*_WORK_FIELDS, "at", "user", "priority", "bastion", "running", "tier", "evictions", "futile")


def _sections(text: str) -> tuple[str, dict[str, list[str]]]:
    """The intent, and the lines of each section, without empty lines and indentation."""
    intent: list[str] = []
    sections: dict[str, list[str]] = {name: [] for name in SECTIONS}
    current = intent
    for line in text.splitlines():
        if line in SECTIONS:
            current = sections[line]
        elif current is not intent and line and not line.startswith("    "):
            raise ScenarioError(f"neither a section nor indented by four spaces: {line}")
        elif line.strip():
            current.append(line.removeprefix("    "))
    return " ".join(intent), sections


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise ScenarioError(f"not KEY=VALUE: {word}")
        yield key, value


def _seconds(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()[1:]):
        raise ScenarioError(f"no duration such as 1h30m: {text}")
    sign, hours, minutes, seconds = match.groups()
    total = int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    return float(-total if sign else total)


def _time(seconds: float) -> str:
    whole = int(seconds)
    parts = [(whole // 3600, "h"), (whole % 3600 // 60, "m"), (whole % 60, "s")]
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"


def _amounts(amounts: Mapping[str, int]) -> str:
    return " ".join(f"{amount} {kind}" for kind, amount in sorted(amounts.items())) or "nothing"
