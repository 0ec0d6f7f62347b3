"""Runs: what to create for a run, and how to end it safely.

A run is an attempt of a job, or the run of its cleanup command. Two rules keep a command from running twice: the gate
is closed before anything is deleted, and a run has ended only when its whole gang is confirmed gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from bastion.core import limits
from bastion.core.bucket import bundles, keys, protocol
from bastion.core.bucket.protocol import AgentArguments, Claim, HostPhase, InputOrder, Order, OrderAction, TimeLeft
from bastion.core.model import kueue
from bastion.core.model.gangs import CapacityModel, GangRef, GangRequest, GangState, Place
from bastion.core.model.job_record import Attempt, Cause, Ending, JobRecord
from bastion.core.model.job_spec import JobSpec
from bastion.core.model.world import Installation, RunView, World
from bastion.core.reconcile import capacity
from bastion.core.reconcile.effects import CloseGate, CreateGang, DeleteGang, Effect, PutOrder, TellLogGap
from bastion.core.run_keys import RunKey


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The names, hosts, order and gang that follow from a record, an attempt and the settings.

    Attributes:
        hosts: Over all slices.
        foreign_host: Whether it runs on another bastion VM or boot, whose processes are invisible here.
    """

    run: str  # `<uid>-<attempt>`
    attempt: Attempt
    spec: JobSpec
    settings: Installation
    cleanup: bool
    valid_until_seconds: float | None = None  # how long its request may wait for capacity
    variables: Mapping[str, str] = field(default_factory=dict)  # of the command, beside the spec's own
    time_left: TimeLeft | None = None  # what its hosts are told of the job's limit
    proofs: Mapping[str, str] = field(default_factory=dict)  # by which they know what earlier attempts stored

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
    def ref(self) -> GangRef:
        place = self.attempt.place
        return GangRef(name=keys.gang(self.run), zone=place.zone if place else "", num_slices=self.slices)

    @property
    def key(self) -> RunKey:
        """The secret of this run."""
        return key_of(self.settings, self.run, self.attempt.token)

    @property
    def claim(self) -> str:
        """The name of its claim below `jobs/claims/`."""
        return keys.claim(self.run, self.key.claim_tag).removeprefix(keys.JOBS_CLAIMS)

    @property
    def foreign_host(self) -> bool:
        return self.on_bastion and self.attempt.host_identity != self.settings.host_identity

    @property
    def provision_seconds(self) -> float:
        """How long its hosts may take to come up; longer for large gangs."""
        large, very_large = limits.LARGE_GANG_HOSTS, limits.VERY_LARGE_GANG_HOSTS
        factor = 3 if self.hosts >= very_large else 2 if self.hosts >= large else 1
        return self.settings.budgets.provision_seconds * factor

    @property
    def last_try(self) -> int:
        """The number of the last try that `max_tries` allows: stuck ones do not count."""
        runner = None if self.cleanup else self.spec.runner
        restart = self.attempt.restart
        stuck = self.attempt.stuck_tries + (restart is not None and restart.failed.stuck)
        return (runner.max_tries if runner else 1) + stuck

    def objects(self) -> Iterator[str]:
        """Yield the names under `runs/` that the daemon and the hosts write: the order and each host's report."""
        yield f"{self.run}/order"
        for host in range(self.hosts):
            yield f"{self.run}/reports/{host}"

    def node_of(self, host: int) -> str:
        return self.ref.node(host * self.slices // self.hosts)

    def order(self, *, stop: Ending | None = None) -> Order:
        spec = self.spec
        runner = None if self.cleanup else spec.runner
        restart = self.attempt.restart
        with_code = not self.cleanup or spec.limits.cleanup_after_group_seconds is not None
        code = spec.code_asset_path or "" if with_code else ""
        return Order(
            run=self.run,
            action=OrderAction.STOP if stop else OrderAction.RESTART if restart else OrderAction.RUN,
            command=(spec.cleanup_command or "") if self.cleanup else spec.command,
            env={**spec.env_vars, **self.variables},
            job=spec.name,
            user_id=spec.user_id,
            project_id=spec.project_id,
            reason=f"{stop.cause.value}: {stop.message}" if stop else "",
            grace_seconds=stop.grace_seconds
            if stop
            else self.settings.budgets.failure_grace_seconds
            if restart
            else 0.0,
            # Hosts with an order for the next try ignore an order for this one.
            try_number=self.attempt.try_number + (restart is not None),
            max_tries=self.last_try,
            code=code,
            code_sha256=bundles.digest_in(code),
            # The bastion is shared: by default nothing is installed on it.
            setup=runner.setup if runner else "",
            output_dir=runner.output_dir if runner else "",
            output_sync=runner.output_sync if runner else "each",
            proxy=runner.proxy if runner else "",
            stuck_after_seconds=(runner.stuck_after_seconds or 0) if runner else 0,
            dump_stacks=stop.cause is Cause.STUCK if stop else restart is not None and restart.failed.stuck,
            secrets=runner.secrets if runner else {},
            inputs=[InputOrder(url=each.url, dir=each.folder) for each in runner.inputs] if runner else [],
            output_to=runner.output_to if runner else "",
            time_left=self.time_left,
            root=runner.root if runner else False,
            proofs=dict(self.proofs),
        )

    def create(self) -> CreateGang:
        runner = None if self.on_bastion else self.spec.runner
        instance_type = runner.instance_type if runner else None
        raw_log = ""
        if self.on_bastion:
            raw_log = keys.cleanup_log(self.spec.name) if self.cleanup else keys.log(self.spec.name)
        place = self.attempt.place or Place()
        arguments = AgentArguments(
            root=self.settings.root,
            bastion=self.settings.bastion,
            job=self.spec.name,
            run=self.run,
            run_key=self.key.text,
            num_slices=self.slices,
            hosts_per_slice=self.hosts // self.slices,
            accelerator_type=instance_type.accelerator_type if instance_type else "",
            zone=place.zone or None,
            devices_per_host=instance_type.devices_per_host if instance_type else 0,
            gpus_per_host=instance_type.chips_per_host if instance_type and instance_type.kind == "gpu" else None,
            raw_log=raw_log,
            poll_seconds=self.settings.poll_seconds,
            beat_seconds=self.settings.beat_seconds,
            order_lost_seconds=limits.BASTION_HOST_ORDER_LOST_SECONDS if self.on_bastion else 0.0,
            interpreter=self.settings.interpreter,
            agent=self.attempt.agent,
            input_cache=place.input_cache or None,
            input_cache_bytes=place.input_cache_bytes or None,
            power_off_seconds=0.0 if self.on_bastion else self.settings.budgets.power_off_seconds,
            # Nothing else holds the pods of a gang together, or ends them.
            gather_hosts=place.pod is not None,
            leave_when_done=place.pod is not None,
            shutdown_seconds=_shutdown_seconds(place),
            job_user="" if self.on_bastion else self.settings.host_job_user,
        )
        if instance_type and not place.runtime_version:
            place = replace(place, runtime_version=instance_type.runtime_version)
        return CreateGang(
            on_bastion=self.on_bastion,
            request=GangRequest(
                ref=self.ref,
                bastion=self.settings.bastion,
                run=self.run,
                token=self.attempt.token,
                accelerator_type=instance_type.accelerator_type if instance_type else "",
                place=place,
                image=(runner.image if runner else "") or (place.pod.image if place.pod else ""),
                secrets=runner.pod_secrets if runner else (),
                user_labels=self.spec.labels if runner else {},
                valid_until_seconds=self.valid_until_seconds,
                priority_class=kueue.priority_class(self.spec.priority, again=self.attempt.number > 1)
                if place.queue
                else "",
                agent_arguments=arguments.to_bytes().decode(),
            ),
        )


def _shutdown_seconds(place: Place) -> float:
    """Return what a pod's command has to save when Kubernetes ends it; the rest is for its log and report."""
    if place.pod is None:
        return 0.0
    spot = place.model is CapacityModel.SPOT
    grace = place.pod.spot_grace_seconds if spot else place.pod.grace_seconds
    return max(1.0, grace - limits.POD_REPORT_SECONDS)


def plan_attempt(record: JobRecord, attempt: Attempt, settings: Installation) -> RunPlan:
    return RunPlan(
        run=str(record.run(attempt)),
        attempt=attempt,
        spec=record.started_job if attempt.number == 0 else record.job,
        settings=settings,
        cleanup=attempt.number == 0,
        valid_until_seconds=capacity.valid_until_seconds(record, attempt),
        proofs=record.proofs_before(attempt),
    )


def key_of(settings: Installation, run: str, token: str) -> RunKey:
    if settings.run_keys is None:
        raise ValueError("the secret of the runs was not read yet")  # the daemon observes nothing before
    return settings.run_keys.of(run, token)


def close_gate(settings: Installation, run: str, token: str, reason: str) -> CloseGate:
    """`token`: in the run's record, or on its gang."""
    key = key_of(settings, run, token)
    return CloseGate(key=keys.claim(run, key.claim_tag), claim=protocol.sign(Claim(run=run, closed=reason), key))


def with_token(record: JobRecord, attempt: Attempt, world: World) -> Attempt:
    """Return a new attempt with its token, 128 bits of this tick's entropy, and the public key that follows from it."""
    run = str(record.run(attempt))
    token = hashlib.sha256(world.entropy + run.encode()).hexdigest()[:32]
    return attempt.model_copy(update={"token": token, "public_key": key_of(world.settings, run, token).public})


def begin(plan: RunPlan) -> list[Effect]:
    """Return the effects after the intent: the order first, so that the first host to boot finds it."""
    return [PutOrder(order=plan.order(), generation=0), plan.create()]


def keep_going(plan: RunPlan, view: RunView) -> list[Effect]:
    """Complete what a crash or a lost reply cut short, and move from try to try; no effects in the steady state."""
    effects: list[Effect] = []
    if view.order is None or _behind(plan, view.order):
        effects.append(PutOrder(order=plan.order(), generation=view.order_generation))  # not 0 if it is unreadable
    if view.claim is None and view.gang_gone and not plan.foreign_host:
        effects.append(plan.create())
    return effects


def _behind(plan: RunPlan, order: Order) -> bool:
    """Whether the hosts' order is of an earlier try, or of this one only to wait, or lacks what is left of its time."""
    if order.action is OrderAction.STOP:
        return False
    if (
        plan.time_left is not None
        and plan.time_left.from_order
        and not (order.time_left and order.time_left.from_order)
    ):
        return True
    waits = order.action is OrderAction.RESTART
    return order.try_number < plan.attempt.try_number + (plan.attempt.restart is not None) or (
        waits and plan.attempt.restart is None
    )


def restart_is_late(plan: RunPlan, view: RunView, now: float) -> bool:
    """Whether the order for the next try was long overdue, so that the hosts' time to prepare starts anew."""
    restart = plan.attempt.restart
    if restart is None or now - restart.since < limits.STOP_REPORT_SLACK_SECONDS:
        return False
    return view.order is None or _behind(plan, view.order)


def stopped(plan: RunPlan, view: RunView) -> bool:
    """Whether no process of the run is alive, or can start later.

    The gate is closed, or the hosts have an order to stop, *and after that* the gang is confirmed gone. The order
    matters: a creation thought lost may still happen, and its hosts must then find the older order to stop.
    """
    closed = view.claim is not None and bool(view.claim.closed)
    if (view.claim is None and view.proven) or not (closed or _told_to_stop(view)):
        return False
    if plan.foreign_host:
        if closed:
            return True
        if any(r.phase.final for r in view.reports.values()):
            return True
        silent = view.silent_seconds.get(0)
        return silent is not None and silent >= limits.BASTION_HOST_HEARTBEAT_LOST_SECONDS
    return view.gang_gone


def stop(plan: RunPlan, view: RunView, ending: Ending, now: float) -> list[Effect]:
    """Return the next step of ending a run: close the gate, order the hosts to stop, wait for them, delete the gang.

    Nothing is deleted until the class of a failure is settled.
    """
    if view.claim is None and view.proven:
        return [close_gate(plan.settings, plan.run, plan.attempt.token, f"{ending.cause.value}: {ending.message}")]
    effects: list[Effect] = []
    if view.claim is None or not view.claim.closed:
        if not _told_to_stop(view):
            effects.append(PutOrder(order=plan.order(stop=ending), generation=view.order_generation))
        if ending.provisional or (not _hosts_done(plan, view) and now < ending.at + _patience(view, ending)):
            return effects
    if not plan.foreign_host and view.gang is not None and view.gang.state is not GangState.DELETING:
        effects.append(DeleteGang(ref=plan.ref, on_bastion=plan.on_bastion))
    return effects


def lost_logs(plan: RunPlan, view: RunView, now: float) -> list[TellLogGap]:
    """Return hosts of an ended run whose output may be incomplete, because they did not confirm its upload."""
    if view.claim is None or view.claim.closed:
        return []  # no command ever ran
    unsaid = [host for host, report in sorted(view.reports.items()) if not report.phase.final]
    reason = "the host stopped before it confirmed that its log was uploaded"
    key = plan.key.text if unsaid else ""
    return [
        TellLogGap(job=plan.spec.name, run=plan.run, host=host, at=now, reason=reason, run_key=key) for host in unsaid
    ]


def stop_is_late(view: RunView, ending: Ending, now: float) -> bool:
    """Whether a crash or an outage delayed the order to stop, so that the hosts' grace starts anew."""
    open_gate = view.claim is not None and not view.claim.closed
    return open_gate and not _told_to_stop(view) and now - ending.at >= limits.STOP_REPORT_SLACK_SECONDS


def _patience(view: RunView, ending: Ending) -> float:
    """How long hosts may take. Hosts whose command has ended store its outputs, unless their capacity is wanted."""
    patience = ending.grace_seconds + limits.STOP_REPORT_SLACK_SECONDS
    storing = any(
        report.phase is HostPhase.ENDED and view.silent_seconds.get(host, 0.0) < limits.HEARTBEAT_LOST_SECONDS
        for host, report in view.reports.items()
    )
    if ending.cause is Cause.STUCK:
        patience += limits.STACKS_SECONDS
    if storing and ending.cause not in (Cause.EVICTED, Cause.INFRASTRUCTURE, Cause.CAPACITY):
        patience += limits.OUTPUT_FINAL_SECONDS
    return patience


def pressing(attempt: Attempt, now: float) -> bool:
    """Whether other jobs wait for the end of the attempt or try that its hosts are carrying out."""
    if attempt.restart is not None:
        return True
    ending = attempt.ending
    return ending is not None and now - ending.at < ending.grace_seconds + limits.STOP_REPORT_SLACK_SECONDS


def _told_to_stop(view: RunView) -> bool:
    return view.order is not None and view.order.action is OrderAction.STOP


def _hosts_done(plan: RunPlan, view: RunView) -> bool:
    """Whether every host sent its last report, or is on a node that cannot run again."""
    if view.gang_gone:
        return True
    for host in range(plan.hosts):
        report = view.reports.get(host)
        if report is not None and report.phase.final:
            continue
        # A missing node has the state of its gang.
        state = view.gang.nodes.get(plan.node_of(host), view.gang.state) if view.gang else None
        if state not in (GangState.LOST, GangState.FAILED):
            return False
    return True
