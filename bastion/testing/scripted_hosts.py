"""Hosts without processes: they follow the run protocol (order, claim, report, heartbeat) on fake slices.

They run a script instead of a command, so that tests can observe every incarnation of a job.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from bastion.core import limits
from bastion.core.bucket import host_errors, keys, protocol
from bastion.core.bucket.protocol import AgentArguments, Claim, HostPhase, Order, OrderAction, Report
from bastion.core.errors import InvalidDocument, NotFound, PreconditionFailed
from bastion.core.instants import to_rfc3339
from bastion.core.model.gangs import GangRequest
from bastion.core.run_keys import RunKey
from bastion.ports import Clock, ObjectStore

_NOT_STORED = -1

Script: TypeAlias = Callable[[int, float], int | None]
"""`(host index, seconds since the command began) -> exit code`, or None while it runs."""


def runs_for(seconds: float, code: int = 0) -> Script:
    """Return a command that takes that long on every host and exits with `code`."""
    return lambda _host, elapsed: code if elapsed >= seconds else None


Saving: TypeAlias = Callable[[int, float], float | None]
"""`(host index, seconds since the command began) -> seconds after which it last saved its work`, or None."""


def saves_every(seconds: float) -> Saving:
    """Return a command that saves a checkpoint on each host at that interval."""
    return lambda _host, elapsed: elapsed // seconds * seconds or None


@dataclass
class _Host:
    arguments: AgentArguments
    slice_index: int
    worker: int
    boot_id: str
    phase: HostPhase = HostPhase.WAITING
    try_number: int = 1
    began: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    error: str = ""
    told: HostPhase | None = None
    last_heartbeat: float = float("-inf")
    saved: float | None = None  # last reported
    saved_told_at: float = float("-inf")
    stuck: bool | None = None  # last reported
    passed_at: float | None = None  # the gate, in monotonic seconds
    ends_by: float | None = None  # when its job's time is over, in monotonic seconds
    sequence: int = 0  # of its last report
    stored: int = 0  # that report's generation
    suspicious: bool = False  # reported in another boot; the gate is unchecked

    @cached_property
    def key(self) -> RunKey:
        return RunKey.from_text(self.arguments.run_key)

    def next_sequence(self, now: float) -> int:
        self.sequence = max(self.sequence + 1, int(now * 1000))
        return self.sequence

    @property
    def index(self) -> int:
        return self.slice_index * self.arguments.hosts_per_slice + self.worker


@dataclass(frozen=True, slots=True)
class Began:
    """The start of a command on a host, for invariants about incarnations."""

    job: str
    run: str
    host: int
    at: float
    try_number: int = 1


@dataclass(slots=True)
class ScriptedHosts:
    """All hosts of all live slices."""

    store: ObjectStore
    clock: Clock
    scripts: dict[str, Script] = field(default_factory=dict)  # by job; jobs without one run forever
    later_scripts: dict[tuple[str, int], Script] = field(default_factory=dict)  # by job and try number
    # By job and host: seconds to store output after the command.
    storing: dict[tuple[str, int], float] = field(default_factory=dict)
    # By job and host: the host's next error, of `host_errors`.
    errors: dict[tuple[str, int], str] = field(default_factory=dict)
    savings: dict[str, Saving] = field(default_factory=dict)  # by job; jobs without one save no checkpoints
    began: list[Began] = field(default_factory=list)  # every start of a command, in order
    mute: set[tuple[str, int]] = field(default_factory=set)  # hosts, as (job, host), without heartbeats
    deaf: set[tuple[str, int]] = field(default_factory=set)  # hosts that hang completely
    stuck: set[tuple[str, int]] = field(default_factory=set)  # hosts that only send heartbeats
    # By job: whether (host, seconds since the command began) the command has given no sign for too long.
    signs: dict[str, Callable[[int, float], bool]] = field(default_factory=dict)
    dumped: list[tuple[str, int, int]] = field(default_factory=list)  # (job, host, try) whose stacks were ordered
    _hosts: dict[tuple[str, int], list[_Host]] = field(default_factory=dict)
    _boots: int = 0
    _booted_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._booted_at = self.clock.now() - self.clock.monotonic()

    def _now(self) -> float:
        """Return the time by the hosts' own clocks."""
        return self._booted_at + self.clock.monotonic()

    def live(self, job: str) -> list[str]:
        return sorted(
            {
                host.arguments.run
                for hosts in self._hosts.values()
                for host in hosts
                if host.arguments.job == job and host.phase is HostPhase.RUNNING
            }
        )

    def finished(self, run: str) -> bool:
        """Whether every host of a run has sent its last report."""
        hosts = [host for hosts in self._hosts.values() for host in hosts if host.arguments.run == run]
        return bool(hosts) and all(host.told is not None and host.told.final for host in hosts)

    def live_tries(self, job: str) -> set[tuple[str, int]]:
        """Return `live` with the try number; two of one run are simultaneous tries."""
        return {
            (host.arguments.run, host.try_number)
            for hosts in self._hosts.values()
            for host in hosts
            if host.arguments.job == job and host.phase is HostPhase.RUNNING
        }

    def step(self, slices: Iterable[tuple[GangRequest, int]]) -> None:
        """Let every host of these slices, given as (gang request, slice index), act once; all others are dead."""
        live = {(request.ref.name, index): request for request, index in slices}
        for gone in [key for key in self._hosts if key not in live]:
            del self._hosts[gone]
        for key, request in sorted(live.items(), key=lambda item: item[0]):
            if key not in self._hosts:
                self._hosts[key] = self._boot(request, key[1])
            for host in self._hosts[key]:
                if (host.arguments.job, host.index) not in self.deaf:
                    self._act(host)

    def _boot(self, request: GangRequest, index: int) -> list[_Host]:
        arguments = protocol.read(AgentArguments, request.agent_arguments.encode())
        self._boots += 1
        return [_Host(arguments, index, worker, f"boot-{self._boots}") for worker in range(arguments.hosts_per_slice)]

    def _act(self, host: _Host) -> None:
        if host.told is None:
            before = self._earlier(host)
            host.suspicious = before is not None and before.boot_id != host.boot_id
            self._report(host)
        elif host.stored == _NOT_STORED:
            self._report(host)
        self._heartbeat(host)
        if (host.arguments.job, host.index) in self.stuck:
            return
        try:
            order = self._read(Order, keys.order(host.arguments.run))
        except InvalidDocument:
            return
        if order is None or (host.phase.final and host.phase is not HostPhase.EXITED):
            return
        self._note_time_left(host, order)
        error = self.errors.pop((host.arguments.job, host.index), "")
        if error:
            code = 1 if error in host_errors.OF_THE_USER else None
            self._end(host, HostPhase.FAILED, code, error=error)
        elif order.action is OrderAction.STOP and host.ended is None:
            self._dump(host, order)
            self._end(host, HostPhase.STOPPED, 143 if host.began is not None else None)
        elif host.ended is None and host.ends_by is not None and self.clock.monotonic() >= host.ends_by:
            code = 143 if host.began is not None else None
            self._end(host, HostPhase.STOPPED, code, error=host_errors.OVERTIME)
        elif order.try_number > host.try_number and order.action is not OrderAction.STOP:
            self._dump(host, order)
            host.try_number, host.phase = order.try_number, HostPhase.WAITING
            host.began = host.ended = host.exit_code = host.saved = host.stuck = None
            self._report(host)
        elif host.phase is HostPhase.WAITING and order.action is OrderAction.RUN:
            self._gate(host)
        elif host.phase in (HostPhase.RUNNING, HostPhase.ENDED):
            self._run(host)

    def _note_time_left(self, host: _Host, order: Order) -> None:
        """As `bastion.agent.time_limit` does, but with an order that counts from when this host saw it first."""
        left = order.time_left
        since = self.clock.monotonic() if left is not None and left.from_order else host.passed_at
        if left is not None and since is not None:
            ends_by = since + left.seconds + limits.OVERTIME_HOST_SLACK_SECONDS
            host.ends_by = ends_by if host.ends_by is None else min(host.ends_by, ends_by)

    def _dump(self, host: _Host, order: Order) -> None:
        if order.dump_stacks and host.phase is HostPhase.RUNNING:
            self.dumped.append((host.arguments.job, host.index, host.try_number))

    def _end(self, host: _Host, phase: HostPhase, exit_code: int | None, *, error: str = "") -> None:
        """`exit_code` is of a command that was running."""
        if host.ended is None:
            host.ended, host.exit_code = self._now(), exit_code
        host.phase, host.error = phase, error
        self._report(host)

    def _gate(self, host: _Host) -> None:
        key = keys.claim(host.arguments.run, host.key.claim_tag)
        if host.index == 0:
            claim = protocol.sign(Claim(run=host.arguments.run, boot_id=host.boot_id), host.key)
            with contextlib.suppress(PreconditionFailed):  # already decided
                self.store.put(key, claim.to_bytes(), generation=0)
        try:
            decided = self._read_signed(Claim, key, host)
        except InvalidDocument:
            decided = Claim(run="not of its hosts")
        if decided is None:
            host.suspicious = False
            return
        if host.index > 0 and host.suspicious and decided.opened:
            self._end(host, HostPhase.FAILED, None, error=host_errors.HOST_RESTARTED)  # it may have run before
            return
        if host.index == 0 and decided.opened and decided.boot_id != host.boot_id:
            self._end(host, HostPhase.FAILED, None, error=host_errors.HOST_RESTARTED)  # it ran before this boot
            return
        if not decided.opened:
            self._end(host, HostPhase.REFUSED, None, error=host_errors.GATE_CLOSED)
            return
        host.phase, host.began = HostPhase.RUNNING, self._now()
        if host.passed_at is None:
            host.passed_at = self.clock.monotonic()
        self.began.append(Began(host.arguments.job, host.arguments.run, host.index, host.began, host.try_number))
        self._report(host)

    def _run(self, host: _Host) -> None:
        now = self._now()
        if host.ended is not None:
            if now - host.ended >= self.storing.get((host.arguments.job, host.index), 0.0):
                self._end(host, HostPhase.EXITED, host.exit_code)
            return
        quiet = now - host.saved_told_at < limits.CHECKPOINT_REPORT_SECONDS
        if not quiet and self._saved(host) != host.saved:
            host.saved_told_at = now
            self._report(host)
        signs = self.signs.get(host.arguments.job)
        stuck = signs(host.index, now - host.began) if signs is not None and host.began is not None else None
        if stuck != host.stuck:
            host.stuck = stuck
            self._report(host)
        script = self.later_scripts.get((host.arguments.job, host.try_number), self.scripts.get(host.arguments.job))
        began = host.began
        if script is None or began is None:
            return
        code = script(host.index, self._now() - began)
        if code is not None:
            stores = self.storing.get((host.arguments.job, host.index), 0.0) > 0
            self._end(host, HostPhase.ENDED if stores else HostPhase.EXITED, code)

    def _saved(self, host: _Host) -> float | None:
        saving = self.savings.get(host.arguments.job)
        if saving is None or host.began is None:
            return None
        return saving(host.index, self._now() - host.began)

    def _report(self, host: _Host) -> None:
        host.saved = self._saved(host)
        began = host.began or 0.0
        report = Report(
            run=host.arguments.run,
            host=host.index,
            sequence=host.next_sequence(self._now()),
            boot_id=host.boot_id,
            phase=host.phase,
            exit_code=host.exit_code,
            error=host.error,
            started_at=to_rfc3339(began) if host.began is not None else "",
            ended_at=to_rfc3339(host.ended) if host.ended is not None else "",
            checkpointed_at=to_rfc3339(began + host.saved) if host.saved is not None else "",
            stuck=host.stuck if host.phase is HostPhase.RUNNING else None,
            try_number=host.try_number,
        )
        key = keys.report(host.arguments.run, host.index)
        meta = self.store.head(key)
        host.told, host.stored = host.phase, _NOT_STORED
        data = protocol.sign(report, host.key).to_bytes()
        with contextlib.suppress(PreconditionFailed):  # somebody else wrote it meanwhile; again in the next step
            host.stored = self.store.put(key, data, generation=meta.generation if meta else 0).generation

    def _heartbeat(self, host: _Host) -> None:
        now = self._now()
        if now - host.last_heartbeat < host.arguments.beat_seconds or (host.arguments.job, host.index) in self.mute:
            return
        key = keys.beat(host.arguments.run, host.index)
        meta = self.store.head(key)
        with contextlib.suppress(PreconditionFailed):
            self.store.put(key, str(now).encode(), generation=meta.generation if meta else 0)
            host.last_heartbeat = now
        told = keys.report(host.arguments.run, host.index)
        found = self.store.head(told)
        if host.told is not None and (found.generation if found else 0) != host.stored:
            self._report(host)  # somebody replaced or deleted it

    def _earlier(self, host: _Host) -> Report | None:
        """Return the report that the host of an earlier boot left."""
        try:
            return self._read_signed(Report, keys.report(host.arguments.run, host.index), host)
        except InvalidDocument:
            return None

    def _read_signed(self, model: type[protocol.S], key: str, host: _Host) -> protocol.S | None:
        try:
            return protocol.read_signed(model, self.store.get(key).data, host.key.public)
        except NotFound:
            return None

    def _read(self, model: type[protocol.D], key: str) -> protocol.D | None:
        try:
            parsed: protocol.D = _parsed(model, self.store.get(key).data)
            return parsed
        except NotFound:
            return None


@functools.lru_cache(maxsize=1024)
def _parsed(kind: type[protocol.D], data: bytes) -> protocol.D:
    """Parse an immutable document; all hosts of a run read the same order at every step."""
    return protocol.read(kind, data)
