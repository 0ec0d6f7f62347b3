"""One host of a run, or several, as threads of a test: real commands on a store in memory, and no daemon."""

import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from bastion import processes
from bastion.adapters.system_clock import SystemClock
from bastion.agent.code.fetch import Fetch
from bastion.agent.command_user import CommandUser
from bastion.agent.host import Host
from bastion.agent.identity import HostIdentity
from bastion.agent.sidecar.sidecar import SidecarTimes
from bastion.agent.vm_notices import VmNotices
from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import AgentArguments, HostPhase, InputOrder, Order, OrderAction, Report, TimeLeft
from bastion.core.errors import NotFound
from bastion.core.run_keys import RunKey
from bastion.ports import Clock, SecretSource
from bastion.testing.counting_store import CountingStore
from bastion.testing.faulty_store import FaultyStore
from bastion.testing.memory_store import MemoryStore
from bastion.wiring.buckets import open_bucket
from bastion.wiring.secrets import secret_sources
from tests.support.stored_logs import stored_text
from tests.support.waiting import until

RUN = "abcdefghij-1"
# Of this test process alone: commands are found, and ended, by it.
KEY = RunKey(secrets.token_bytes(32))


class Stage:
    """One run's keys, and the hosts that a test lets live."""

    def __init__(self, state_dir: Path) -> None:
        self.memory = MemoryStore()
        self.counting = CountingStore(self.memory)
        self.store = FaultyStore(self.counting)
        self.state_dir = state_dir
        self.fetch: Fetch = self._no_code
        self.secrets: Mapping[str, SecretSource] = secret_sources({"TOKEN": "of the agent"})
        self._runs = {RUN}
        self._live: list[tuple[Host, threading.Thread]] = []

    def _no_code(self, url: str) -> bytes:
        raise NotFound(f"there is no {url}")

    def order(
        self,
        command: str = "true",
        *,
        stop: str = "",
        restart: str = "",
        grace: float = 20.0,
        env: dict[str, str] | None = None,
        number: int = 1,
        most: int = 1,
        code: str = "",
        code_sha256: str = "",
        setup: str | None = None,
        output_dir: str = "",
        output_sync: str = "each",
        proxy: str = "",
        inputs: Sequence[InputOrder] = (),
        output_to: str = "",
        run: str = RUN,
        stuck_after: int = 0,
        dump_stacks: bool = False,
        secrets: dict[str, str] | None = None,
        time_left: TimeLeft | None = None,
        root: bool = False,
    ) -> None:
        """Writes the order to run a try of the command; or to stop, or restart, for a reason."""
        action = OrderAction.STOP if stop else OrderAction.RESTART if restart else OrderAction.RUN
        order = Order(
            run=run,
            action=action,
            command=command,
            reason=stop or restart,
            grace_seconds=grace,
            env=env or {},
            try_number=number,
            max_tries=most,
            code=code,
            code_sha256=code_sha256,
            setup=setup,
            output_dir=output_dir,
            output_sync=output_sync,
            proxy=proxy,
            stuck_after_seconds=stuck_after,
            dump_stacks=dump_stacks,
            secrets=secrets or {},
            inputs=list(inputs),
            output_to=output_to,
            time_left=time_left,
            root=root,
            proofs={f"{run.partition('-')[0]}-{attempt}": KEY.public for attempt in range(1, 10)},
        )
        meta = self.memory.head(keys.order(run))
        self.memory.put(keys.order(run), order.to_bytes(), generation=0 if meta is None else meta.generation)

    def host(
        self,
        *,
        worker: int = 0,
        hosts: int = 1,
        boot: str = "boot-1",
        raw_log: str = "",
        order_lost_seconds: float = 0.0,
        on_vm: bool = False,
        state_dir: Path | None = None,
        key: RunKey = KEY,
        notices: VmNotices | None = None,
        run: str = RUN,
        power_off: Callable[[], None] | None = None,
        proxy_program: Sequence[str] = (),
        proxy_times: SidecarTimes | None = None,
        clock: Clock | None = None,
        command_user: CommandUser | None = None,
        **changes: Any,
    ) -> Host:
        """With `power_off`, it is called soon when nobody needs the host. `changes`: of the agent's arguments."""
        self._runs.add(run)
        arguments = AgentArguments(
            root="/b/t-bastion",
            bastion="t-bastion",
            job="job",
            run=run,
            run_key=key.text,
            hosts_per_slice=hosts,
            accelerator_type="v4-16" if on_vm else "",
            devices_per_host=4 if on_vm else 0,
            raw_log=raw_log,
            poll_seconds=0.03,
            beat_seconds=1.0,
            order_lost_seconds=order_lost_seconds,
            power_off_seconds=0.3 if power_off else 0.0,
        ).model_copy(update=changes)
        peers = tuple(f"127.0.0.{n + 1}" for n in range(hosts)) if on_vm else ()
        identity = HostIdentity(arguments=arguments, worker=worker, peers=peers)
        environ = {"PATH": os.environ["PATH"], "BASTION_EMULATED_BOOT_ID": boot}
        return Host(
            identity,
            self.store,
            clock=clock or SystemClock(),
            rng=Random(1),
            environ=environ,
            state_dir=state_dir or self.state_dir,
            fetch=self.fetch,
            secrets=self.secrets,
            open_bucket=open_bucket,
            notices=notices,
            power_off=power_off,
            proxy_program=proxy_program,
            proxy_times=proxy_times,
            command_user=command_user,
        )

    def start(self, host: Host) -> threading.Thread:
        thread = threading.Thread(target=host.run, daemon=True)
        thread.start()
        self._live.append((host, thread))
        return thread

    def run(self, command: str = "true", *, host: Host | None = None, **order: Any) -> None:
        """Orders a try and starts the host."""
        self.order(command, **order)
        self.start(host or self.host())

    def end(self) -> None:
        self.store.enabled = False
        for host, thread in self._live:
            host.shut_down()
            thread.join(20.0)
            assert not thread.is_alive()
        for run in self._runs:
            for worker in range(2):
                assert processes.end_marked("BASTION_COMMAND", f"{run}.{worker}.{KEY.public[:8]}", grace_seconds=0)

    def report(self, worker: int = 0, *, run: str = RUN) -> Report | None:
        """The host's report, which it signed, without its proof."""
        try:
            report = protocol.read_signed(Report, self.memory.get(keys.report(run, worker)).data, KEY.public)
        except NotFound:
            return None
        return report.model_copy(update={"sequence": 0, "signature": ""})

    def phase(self, worker: int = 0) -> HostPhase | None:
        report = self.report(worker)
        return None if report is None else report.phase

    def waits_for(self, number: int, worker: int = 0) -> bool:
        """Whether the host waits for that try."""
        report = self.report(worker)
        return report is not None and (report.phase, report.try_number) == (HostPhase.WAITING, number)

    def final(self, worker: int = 0, *, number: int = 1, run: str = RUN) -> Report:
        """The final report of a try."""

        def said() -> bool:
            report = self.report(worker, run=run)
            return report is not None and report.phase.final and report.try_number == number

        until(said)
        report = self.report(worker, run=run)
        assert report is not None
        return report

    def log(self, worker: int = 0, *, run: str = RUN, source: keys.LogSource = "worker") -> list[str]:
        """The log's lines without their instants."""
        text = stored_text(self.memory, keys.log_segments("job", run, worker, source=source))
        return [line.split(" ", 1)[1] for line in text.splitlines()]


def command_processes(worker: int = 0) -> list[processes.ProcessId]:
    return processes.marked("BASTION_COMMAND", f"{RUN}.{worker}.{KEY.public[:8]}")
