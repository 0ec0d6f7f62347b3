"""A daemon, real agents on fake slices, and an attacker with the hosts' account, at an endpoint that knows who asks."""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

from bastion.adapters.gcs.client import prepared
from bastion.adapters.gcs.store import GcsStore
from bastion.adapters.inbox_proof import BucketProof
from bastion.adapters.prefixed_store import PrefixedStore
from bastion.adapters.system_clock import SystemClock
from bastion.agent.host import Host
from bastion.agent.identity import HostIdentity
from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import AgentArguments, Report
from bastion.core.errors import InvalidDocument, NotFound
from bastion.core.model import job_record, job_spec
from bastion.core.model.gangs import GangRequest
from bastion.core.model.job_record import JobRecord
from bastion.core.model.job_spec import JobOptions
from bastion.core.model.world import Installation
from bastion.core.run_keys import RunKey
from bastion.daemon.daemon import Daemon
from bastion.daemon.observe.gangs import Provisioners
from bastion.daemon.run_secret import read_run_keys
from bastion.daemon.tick import DaemonOptions, TickReport
from bastion.ports import ObjectStore
from bastion.testing.cluster import QUOTA
from bastion.testing.fake_provisioner import FakeProvisioner
from bastion.wiring.buckets import open_bucket
from tests.support.rights.deployment import opened, terraform
from tests.support.rights.how_to import BASTION, BUCKET, PRIVATE

PATIENCE_SECONDS = 30.0


class AttackedSlices:
    """The buckets as Terraform makes them. All hosts have the account `worker`, and so has the attacker.

    Attributes:
        attacker: The ROOT as a command on another run's host can use it.
        problems: The alarms of the last tick.
        before_input: Called with a host's number before it opens an input.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cleanup = ExitStack()
        module = terraform()
        self._stage = self._cleanup.enter_context(opened(folder / "buckets", module.roles))
        self._stage.grant(module.folders, module.granted)
        self.attacker = self.store("worker")
        self.store("admin", PRIVATE).put(keys.PROJECT_QUOTAS, QUOTA, generation=0)
        self.clock = SystemClock()
        self.slices = FakeProvisioner(self.clock)
        self.problems: list[str] = []
        self.before_input: Callable[[int], object] = lambda _host: None
        self._hosts: dict[tuple[str, int], tuple[Host, threading.Thread]] = {}
        private = self.store("daemon", PRIVATE)
        self.run_keys = read_run_keys(private, shown=PRIVATE, draw=os.urandom)
        self.daemon = self._new_daemon(private)

    def _new_daemon(self, private: ObjectStore) -> Daemon:
        return Daemon(
            store=self.store("daemon"),
            quota_store=private,
            provisioners=Provisioners(slices=self.slices, bastion_host=FakeProvisioner(self.clock)),
            clock=self.clock,
            options=DaemonOptions(
                installation=Installation(
                    root=f"gs://{BUCKET}/{BASTION}",
                    bastion=BASTION,
                    host_identity="host",
                    poll_seconds=0.1,
                    beat_seconds=0.5,
                ),
                owner="daemon",
                process="",
                lease_ttl_seconds=60.0,
            ),
            entropy=lambda: os.urandom(16),
            proof=BucketProof(),
            run_keys=lambda: self.run_keys,
        )

    def close(self) -> None:
        for host, _ in self._hosts.values():
            host.shut_down()
        for _, thread in self._hosts.values():
            thread.join(20.0)
        self.daemon.close()
        self._cleanup.close()

    def store(self, caller: str, bucket: str = BUCKET) -> ObjectStore:
        """Return the ROOT as that caller may use it."""
        client = prepared(self._stage.client(caller))
        gcs = GcsStore(bucket, client=client, parts_prefix=f"{BASTION}/append-parts/", write_interval_seconds=0.0)
        return PrefixedStore(gcs, f"{BASTION}/")

    def submit(
        self,
        name: str,
        command: str,
        *,
        hosts: int = 1,
        env: Mapping[str, str] | None = None,
        output_dir: str | None = None,
        inputs: Sequence[Mapping[str, str]] | None = None,
    ) -> str:
        """Return the run of its first attempt."""
        spec = job_spec.new(
            name=name,
            bastion=BASTION,
            command=command,
            user_id="alice",
            project_id="a",
            now=time.time(),
            options=JobOptions(
                instance_type=f"tpu-v4-{8 * hosts}",
                env_vars=dict(env or {}),
                setup="",
                output_dir=output_dir,
                inputs=inputs,
            ),
        )
        meta = self.store("user").put(keys.active(name), spec.to_bytes(), generation=0)
        return f"{keys.job_uid(f'gs://{BUCKET}/{BASTION}', name, meta.generation)}-1"

    def step(self, *, hosts: bool = True) -> TickReport:
        report = self.daemon.tick()
        self.problems = report.problems
        for request in self.slices.created if hosts else ():
            arguments = protocol.read(AgentArguments, request.agent_arguments.encode())
            for worker in range(arguments.hosts_per_slice):
                if (request.run, worker) not in self._hosts:
                    self._start(request, arguments, worker)
        time.sleep(0.05)
        return report

    def _start(self, request: GangRequest, arguments: AgentArguments, worker: int) -> None:
        peers = tuple(f"127.0.0.{number + 1}" for number in range(arguments.hosts_per_slice))
        host = Host(
            HostIdentity(arguments=arguments, worker=worker, peers=peers),
            self.store("worker"),
            clock=self.clock,
            rng=Random(worker),
            environ={"PATH": os.environ["PATH"], "BASTION_EMULATED_BOOT_ID": f"boot-{worker}"},
            state_dir=self._folder / "hosts",
            fetch=self._no_code,
            secrets={},
            open_bucket=functools.partial(self._open_input, worker),
        )
        thread = threading.Thread(target=host.run, name=f"{request.run} {worker}", daemon=True)
        thread.start()
        self._hosts[request.run, worker] = host, thread

    def _open_input(self, host: int, url: str, *, create: bool = False) -> tuple[ObjectStore, str]:
        self.before_input(host)
        return open_bucket(url, create=create)

    def _no_code(self, url: str) -> bytes:
        raise NotFound(f"there is no {url}")

    def until(self, done: Callable[[], object], *, hosts: bool = True) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not done():
            assert time.monotonic() < deadline, "it did not happen"
            self.step(hosts=hosts)

    def ticks(self, number: int) -> None:
        for _ in range(number):
            self.step()

    def lose(self, run: str) -> None:
        """Take the run's slice away, as the platform does."""
        for (each, _), (host, _) in self._hosts.items():
            if each == run:
                host.shut_down()
        self.slices.lose(keys.gang(run))

    def key_of(self, run: str) -> RunKey:
        token = next(request.token for request in self.slices.created if request.run == run)
        return self.run_keys.of(run, token)

    def record(self, name: str) -> JobRecord:
        found = job_record.read(self.store("daemon").get(keys.state(name)).data, name=name)
        assert isinstance(found, JobRecord)
        return found

    def result(self, name: str) -> tuple[str, int, int] | None:
        """Return outcome, exit code and number of attempts; None while it lives."""
        try:
            result = json.loads(self.store("daemon").get(keys.complete(name)).data)["result"]
        except NotFound:
            return None
        return result["outcome"], result["exit_code"], len(result["attempts"])

    def report(self, run: str, host: int = 0) -> Report | None:
        """Return the report as it stands, if the run signed it."""
        try:
            data = self.attacker.get(keys.report(run, host)).data
            return protocol.read_signed(Report, data, self.key_of(run).public)
        except (NotFound, InvalidDocument):
            return None

    def overwrite(self, key: str, data: bytes) -> None:
        """As the attacker."""
        meta = self.attacker.head(key)
        self.attacker.put(key, data, generation=meta.generation if meta else 0)
