"""Carrying one run through: what to create for it, how it is going, and how to end it safely.

A run is an attempt of a job, or the run of its cleanup command. The rules of DESIGN §4 that keep a command from running
twice live here: the gate is closed before anything is deleted, and a run is over only when each of its nodes is
confirmed gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from bastion.core import keys, limits
from bastion.core.effects import CloseGate, CreateNode, DeleteNode, Effect, PutOrder
from bastion.core.job_record import Attempt, Cause, Ending, JobRecord
from bastion.core.jobspec import JobSpec
from bastion.core.protocol import AgentArguments, HostPhase, Order, OrderAction, Report
from bastion.core.slices import SliceRequest, SliceState
from bastion.core.world import RunView, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Everything that follows from a record, an attempt and the settings: names, hosts, order, nodes.

    Attributes:
        run: `<uid>-<attempt>`.
        hosts: Over all slices.
        on_bastion: It runs on the bastion's own host.
        foreign_host: It runs on a bastion VM (or boot) that is not ours: its processes cannot be seen from here.
    """

    run: str
    attempt: Attempt
    spec: JobSpec
    settings: Settings
    cleanup: bool

    @property
    def on_bastion(self) -> bool:
        return self.cleanup or self.spec.runner is None

    @property
    def hosts(self) -> int:
        return 1 if self.on_bastion else self.spec.hosts

    @property
    def slices(self) -> int:
        return 1 if self.on_bastion or self.spec.runner is None else self.spec.runner.num_replicas

    @property
    def node_ids(self) -> tuple[str, ...]:
        return tuple(keys.node_id(self.run, k, self.slices) for k in range(self.slices))

    @property
    def foreign_host(self) -> bool:
        return self.on_bastion and self.attempt.host_identity != self.settings.host_identity

    def node_of(self, host: int) -> str:
        return self.node_ids[host * self.slices // self.hosts]

    def order(self, *, stop: Ending | None = None) -> Order:
        spec = self.spec
        return Order(
            run=self.run,
            action=OrderAction.STOP if stop else OrderAction.RUN,
            command=(spec.cleanup_command or "") if self.cleanup else spec.command,
            env=dict(spec.env_vars),
            job=spec.name,
            user_id=spec.user_id,
            project_id=spec.project_id,
            reason=f"{stop.cause.value}: {stop.message}" if stop else "",
            grace_seconds=stop.grace_seconds if stop else 0.0,
        )

    def create(self, slice_index: int) -> CreateNode:
        runner = None if self.on_bastion else self.spec.runner
        kind = runner.instance_type if runner else None
        raw_log = ""
        if self.on_bastion:
            raw_log = keys.cleanup_log(self.spec.name) if self.cleanup else keys.log(self.spec.name)
        arguments = AgentArguments(
            root=self.settings.root,
            bastion=self.settings.bastion,
            job=self.spec.name,
            run=self.run,
            token=self.attempt.token,
            slice_index=slice_index,
            num_slices=self.slices,
            hosts_per_slice=self.hosts // self.slices,
            accelerator_type=kind.accelerator_type if kind else "",
            devices_per_host=kind.devices_per_host if kind else 0,
            raw_log=raw_log,
            poll_seconds=self.settings.poll_seconds,
            beat_seconds=self.settings.beat_seconds,
            order_lost_seconds=limits.BASTION_HOST_ORDER_LOST_SECONDS if self.on_bastion else 0.0,
            interpreter=self.settings.interpreter,
        )
        return CreateNode(
            on_bastion=self.on_bastion,
            request=SliceRequest(
                node_id=self.node_ids[slice_index],
                bastion=self.settings.bastion,
                run=self.run,
                token=self.attempt.token,
                accelerator_type=kind.accelerator_type if kind else "",
                runtime_version=kind.runtime_version if kind else "",
                agent_arguments=arguments.to_bytes().decode(),
            ),
        )


def plan_attempt(record: JobRecord, attempt: Attempt, settings: Settings) -> RunPlan:
    cleanup = attempt.number == 0
    return RunPlan(run=str(record.run(attempt)), attempt=attempt, spec=record.job, settings=settings, cleanup=cleanup)


def draw_token(entropy: bytes, run: str) -> str:
    """The run token: 128 bits from this tick's entropy."""
    return hashlib.sha256(entropy + run.encode()).hexdigest()[:32]


def begin(plan: RunPlan) -> list[Effect]:
    """What follows the intent: the order first, so that the first host to boot finds it."""
    return [PutOrder(order=plan.order(), generation=0), *(plan.create(k) for k in range(plan.slices))]


def _first_failure(reports: Mapping[int, Report]) -> Report | None:
    bad = [r for r in reports.values() if r.phase is HostPhase.EXITED and r.exit_code != 0]
    return min(bad, key=lambda r: (r.ended_at, r.host), default=None)


def _ending(cause: Cause, message: str, now: float, **details: int | None) -> Ending:
    return Ending(
        cause=cause,
        message=message[: limits.MESSAGE_MAX_CHARS],  # hosts and APIs wrote it, and every attempt keeps it
        at=now,
        grace_seconds=limits.FAILURE_GRACE_SECONDS,
        exit_code=details.get("exit_code"),
        failed_worker=details.get("failed_worker"),
    )


def verdict(plan: RunPlan, view: RunView, now: float) -> Ending | None:
    """Whether the run has ended by itself, and why; None while it goes on.

    What hosts reported comes before what became of their nodes: a host may report and vanish.
    """
    reports = view.reports
    failed = _first_failure(reports)
    if failed is not None:
        text = f"worker {failed.host} exited with {failed.exit_code}"
        return _ending(Cause.FAILED, text, now, exit_code=failed.exit_code, failed_worker=failed.host)
    if len(reports) == plan.hosts and all(r.phase is HostPhase.EXITED for r in reports.values()):
        return _ending(Cause.SUCCEEDED, "every worker exited with 0", now, exit_code=0)
    for report in sorted(reports.values(), key=lambda r: r.host):
        if report.phase in (HostPhase.FAILED, HostPhase.STOPPED, HostPhase.REFUSED):
            text = f"worker {report.host} {report.phase.value}: {report.error or 'host'} {report.message}".rstrip()
            return _ending(Cause.INFRASTRUCTURE, text, now, failed_worker=report.host)
    for node_id, (cause, message) in sorted(view.failures.items()):
        if node_id not in view.nodes:
            return _ending(Cause(cause), f"{node_id}: {message}", now)
    lost = [s for _, s in sorted(view.nodes.items()) if s.state in (SliceState.LOST, SliceState.DELETING)]
    if lost and not plan.foreign_host:
        return _ending(
            Cause.INFRASTRUCTURE, f"{lost[0].node_id} was lost: {lost[0].message or lost[0].state.value}", now
        )
    claimed = view.claim is not None and view.claim.token == plan.attempt.token
    if claimed and not plan.foreign_host:
        gone = sorted(view.nodes_gone.intersection(plan.node_ids))
        if gone:
            return _ending(Cause.INFRASTRUCTURE, f"{gone[0]} is gone though nobody here deleted it", now)
    foreign_token = [s.node_id for s in view.nodes.values() if s.token != plan.attempt.token]
    if foreign_token:
        return _ending(Cause.INFRASTRUCTURE, f"a node named {foreign_token[0]} exists that is not ours", now)
    patience = limits.BASTION_HOST_BEAT_LOST_SECONDS if plan.foreign_host else limits.BEAT_LOST_SECONDS
    for host, silent in sorted(view.silent_seconds.items()):
        if silent >= patience:
            text = f"worker {host} has not been heard of for {patience:.0f} s"
            return _ending(Cause.INFRASTRUCTURE, text, now, failed_worker=host)
    if len(reports) < plan.hosts and now - plan.attempt.started_at >= limits.PROVISION_TIMEOUT_SECONDS:
        text = f"only {len(reports)} of {plan.hosts} hosts came up within {limits.PROVISION_TIMEOUT_SECONDS:.0f} s"
        return _ending(Cause.INFRASTRUCTURE, text, now)
    return None


def keep_going(plan: RunPlan, view: RunView) -> list[Effect]:
    """Completes a start that a crash or a lost reply cut short; nothing in the steady state."""
    effects: list[Effect] = []
    if view.order is None:
        effects.append(PutOrder(order=plan.order(), generation=view.order_generation))  # not 0 if it is garbage
    if view.claim is None and not plan.foreign_host:
        for index, node_id in enumerate(plan.node_ids):
            if node_id in view.nodes_gone and node_id not in view.nodes:
                effects.append(plan.create(index))
    return effects


def stopped(plan: RunPlan, view: RunView) -> bool:
    """Whether nothing of the run can be alive, now or later.

    The gate is closed, or the hosts are told to stop *and then* each node is confirmed gone. The order of the two
    matters: a creation whose request seemed lost may still happen, and its hosts (all but the one that claims) would
    find a valid claim; what they find as well is an order to stop that is older than they are.
    """
    if view.claim is None or not (view.claim.closed or _told_to_stop(view)):
        return False
    if plan.foreign_host:
        if view.claim.closed:
            return True
        if any(r.phase.final for r in view.reports.values()):
            return True
        silent = view.silent_seconds.get(0)
        return silent is not None and silent >= limits.BASTION_HOST_BEAT_LOST_SECONDS
    return all(node_id in view.nodes_gone and node_id not in view.nodes for node_id in plan.node_ids)


def stop(plan: RunPlan, view: RunView, ending: Ending, now: float) -> list[Effect]:
    """The next step of ending a run: close the gate, tell the hosts, wait for them, delete the nodes."""
    if view.claim is None:
        return [CloseGate(run=plan.run, reason=f"{ending.cause.value}: {ending.message}")]
    effects: list[Effect] = []
    if not view.claim.closed:
        if not _told_to_stop(view):
            effects.append(PutOrder(order=plan.order(stop=ending), generation=view.order_generation))
        patience = ending.at + ending.grace_seconds + limits.STOP_REPORT_SLACK_SECONDS
        if not _hosts_done(plan, view) and now < patience:
            return effects
    if not plan.foreign_host:
        effects += [
            DeleteNode(node_id=node_id, on_bastion=plan.on_bastion)
            for node_id, status in sorted(view.nodes.items())
            if status.state is not SliceState.DELETING
        ]
    return effects


def _told_to_stop(view: RunView) -> bool:
    return view.order is not None and view.order.action is OrderAction.STOP


def _hosts_done(plan: RunPlan, view: RunView) -> bool:
    """Whether no host has anything left to say: it gave its last report, or its node cannot run any more."""
    for host in range(plan.hosts):
        report = view.reports.get(host)
        if report is not None and report.phase.final:
            continue
        node_id = plan.node_of(host)
        status = view.nodes.get(node_id)
        dead = node_id in view.nodes_gone if status is None else status.state is SliceState.LOST
        if not dead:
            return False
    return True
