"""A whole bastion in one process: a daemon, its bucket, fake slices and scripted hosts, on a manual clock.

cluster = Cluster(quota=QUOTA)
cluster.submit("job-a", resources={"v4": 32}, instance_type="tpu-v4-32")
cluster.hosts.scripts["job-a"] = runs_for(5, code=0)
cluster.run_until(lambda: cluster.result("job-a"))
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from bastion.adapters.inbox_proof import BucketProof
from bastion.core import documents
from bastion.core.bucket import keys
from bastion.core.errors import NotFound
from bastion.core.model import bastion_host_jobs, job_spec
from bastion.core.model.bastion_host_jobs import HostJobsMode
from bastion.core.model.identity import Identity, Inbox
from bastion.core.model.job_record import JobRecord
from bastion.core.model.job_record import read as read_record
from bastion.core.model.job_spec import JobOptions
from bastion.core.model.mode import Mode
from bastion.core.model.provisioning import BUILT_IN, Provisioning
from bastion.core.model.world import Installation
from bastion.core.reconcile.sweep import PAST_RUNS_KEPT_SECONDS
from bastion.core.run_keys import RunKey
from bastion.core.status import packing
from bastion.daemon.act.agents import Agents
from bastion.daemon.daemon import Daemon
from bastion.daemon.observe.observer import Provisioners
from bastion.daemon.tick import DaemonOptions, TickReport
from bastion.ports import Clock, InboxProof, ObjectStore
from bastion.testing.drawn_run_keys import DrawnRunKeys
from bastion.testing.fake_provisioner import FakeProvisioner
from bastion.testing.manual_clock import ManualClock
from bastion.testing.memory_store import MemoryStore
from bastion.testing.scripted_hosts import ScriptedHosts

BASTION = "test-bastion"
ROOT = f"memory/{BASTION}"
QUOTA = b"""
[toml-schema]
version = "1"
[total_resources]
v4 = 64
[project_membership]
a = ["alice"]
b = ["bob"]
[project_resources.a]
v4 = 0.5
[project_resources.b]
v4 = 0.5
"""

# An addition to a quota file, for more queued jobs of one user.
LONG_QUEUES = b"""
[project_rules]
max_queued_jobs = 100000
max_queued_jobs_per_user = 100000
"""


class Cluster:
    """A bastion without processes.

    Attributes:
        store: The bucket, as users and hosts see it.
        hosts: The hosts of live slices; set their `scripts`.
        agents: What new daemons upload for the nodes, if anything.
        proof: What proves to new daemons whose objects are in an inbox.
        run_keys: The keys of the runs, for new daemons.
        daemon: The present daemon; `restart_daemon` replaces it.
    """

    def __init__(
        self,
        *,
        quota: bytes | None = QUOTA,
        daemon_store: ObjectStore | None = None,
        lease_ttl_seconds: float = 5.0,
        without_settings: Provisioning | None = BUILT_IN,
        own_server_time: bool = False,
    ) -> None:
        """Begin with `without_settings` until `config/daemon.toml` is written.

        With `own_server_time` the bucket has its own clock.
        """
        self.clock = ManualClock()
        memory = MemoryStore(now=self.clock.unset if own_server_time else self.clock.now)
        self.store: ObjectStore = memory
        self.slices = FakeProvisioner(self.clock)
        self.bastion_host = FakeProvisioner(self.clock)
        self.hosts = ScriptedHosts(store=self.store, clock=self.clock)
        self._names = itertools.count(1)
        self._daemon_store = daemon_store
        self._lease_ttl_seconds = lease_ttl_seconds
        self._without_settings = without_settings
        self.host_identity = "host-1"
        self.agents: Agents | None = None
        self.run_keys = DrawnRunKeys()
        self.proof: InboxProof = BucketProof()
        if quota is not None:
            self.write_quota(quota)
        self.daemon = self.new_daemon()

    # -- the daemon ---------------------------------------------------------------------------------------------

    def new_daemon(
        self,
        store: ObjectStore | None = None,
        quota_store: ObjectStore | None = None,
        *,
        provisioners: Provisioners | None = None,
        clock: Clock | None = None,
        elsewhere: bool = False,
        store_threads: int = 1,
    ) -> Daemon:
        """Make a new daemon; arguments override the cluster's own parts.

        `elsewhere`: it runs on another machine, so a successor waits for the TTL.
        """
        number = next(self._names)
        store = store or self._daemon_store or self.store
        return Daemon(
            store=store,
            quota_store=quota_store or store,
            provisioners=provisioners or Provisioners(slices=self.slices, bastion_host=self.bastion_host),
            clock=clock or self.clock,
            options=DaemonOptions(
                installation=Installation(
                    root=ROOT, bastion=BASTION, host_identity=self.host_identity, poll_seconds=1.0
                ),
                owner=f"daemon-{number}",
                # No such process exists: a successor takes over at once.
                process="" if elsewhere else f"{number}:1",
                tick_seconds=1.0,
                lease_ttl_seconds=self._lease_ttl_seconds,
                without_file=self._without_settings,
                store_threads=store_threads,
            ),
            entropy=lambda: f"entropy {next(self._names)}".encode(),
            proof=self.proof,
            run_keys=lambda: self.run_keys,
            agents=self.agents,
            host_jobs=lambda settings: bastion_host_jobs.decide(
                settings.bastion_host_jobs if settings is not None else None,
                HostJobsMode.AS_DAEMON,
                why_no_users="nobody here has another user",
            ),
        )

    def restart_daemon(self) -> None:
        """Restart as after `kill -9`: the successor reads the bucket."""
        self.clock.advance(self._lease_ttl_seconds + 1)  # the dead daemon's lease expires
        self.daemon = self.new_daemon()
        self.daemon.tick()  # sees the lease for the first time
        self.clock.advance(self._lease_ttl_seconds + 1)

    def step(self, seconds: float = 1.0) -> TickReport:
        """Run one tick, then one action of every host, then let time pass."""
        report = self.daemon.tick()
        self.hosts.step([*self.slices.live_slices(), *self.bastion_host.live_slices()])
        self.clock.advance(seconds)
        return report

    def run_until(self, done: Callable[[], object], *, steps: int = 200) -> int:
        """Step until `done`; return the number of steps. Raises AssertionError if not done in time."""
        for step in range(steps):
            if done():
                return step
            self.step()
        raise AssertionError(f"not done after {steps} steps: {self.describe()}")

    def settle(self, steps: int = 5) -> None:
        for _ in range(steps):
            self.step()

    def outlive_late_requests(self) -> None:
        """Let time pass until the daemon has swept the remains of ended jobs."""
        self.clock.advance(PAST_RUNS_KEPT_SECONDS)
        self.settle(8)

    # -- users --------------------------------------------------------------------------------------------------

    def write_quota(self, data: bytes) -> None:
        self._overwrite(keys.PROJECT_QUOTAS, data)

    def write_settings(self, data: bytes) -> None:
        self._overwrite(keys.DAEMON_SETTINGS, data)

    def _overwrite(self, key: str, data: bytes) -> None:
        meta = self.store.head(key)
        self.store.put(key, data, generation=meta.generation if meta else 0)

    def use_inboxes(self, users: Mapping[str, Inbox] | None = None) -> None:
        """Take specs and requests from inboxes from now on."""
        document = Identity(mode=Mode.INBOX, users=dict(users or {}))
        self._overwrite(keys.IDENTITY, document.to_bytes())

    def submit(
        self,
        name: str,
        *,
        user: str = "alice",
        inbox: str = "",
        project: str = "a",
        instance_type: str = "",
        num_replicas: int = 1,
        priority: int = 5,
        resources: Mapping[str, int] | None = None,
        cleanup_command: str | None = None,
        version: int | None = None,
        command: str = "run",
        max_tries: int | None = None,
        max_wait_seconds: int | None = None,
        stuck_after_seconds: int | None = None,
        **others: Any,
    ) -> str:
        """Write a spec; `others` are options of `JobOptions`. Returns the job's uid.

        `inbox`: Of which user; empty: to `jobs/active/`.
        """
        spec = job_spec.new(
            name=name,
            bastion=BASTION,
            command=command,
            user_id=user,
            project_id=project,
            now=self.clock.now(),
            options=JobOptions(
                instance_type=instance_type,
                num_replicas=num_replicas,
                priority=priority,
                cleanup_command=cleanup_command,
                max_tries=max_tries,
                max_wait_seconds=max_wait_seconds,
                stuck_after_seconds=stuck_after_seconds,
                **others,
            ),
        )
        document = json.loads(spec.to_bytes())
        if resources is not None:
            document["metadata"]["resources"] = dict(resources)
        if version is not None:
            document["metadata"]["version"] = version
        return self.put_spec(name, documents.dumps(document), inbox)

    def put_spec(self, name: str, data: bytes, inbox: str = "") -> str:
        key = keys.active(name, inbox)
        present = self.store.head(key)
        meta = self.store.put(key, data, generation=present.generation if present else 0)
        return keys.job_uid(ROOT, name, meta.generation, owner=inbox)

    def cancel(self, name: str, uid: str = "", *, inbox: str = "") -> None:
        user_request = {"status": "CANCELLING", **({"uid": uid} if uid else {})}
        self.store.put(keys.user_state(name, inbox), documents.dumps(user_request), generation=0)

    def key_of(self, run: str) -> RunKey:
        """Return the key of a run with a gang, now or earlier."""
        token = next(each.token for each in (*self.slices.created, *self.bastion_host.created) if each.run == run)
        return self.run_keys.of(run, token)

    def claim_of(self, run: str) -> str:
        """Return the key of that run's claim."""
        return keys.claim(run, self.key_of(run).claim_tag)

    # -- results ---------------------------------------------------------------------------------------------

    def json(self, key: str) -> Any:
        """The JSON under a key (the status with every job as an object); None if there is none."""
        try:
            data = self.store.get(key).data
        except NotFound:
            return None
        return packing.read(data).model_dump(mode="json") if key == keys.STATUS else json.loads(data)

    def record(self, name: str) -> JobRecord | None:
        try:
            record = read_record(self.store.get(keys.state(name)).data, name=name)
        except NotFound:
            return None
        return record if isinstance(record, JobRecord) else None

    def status(self, name: str) -> str:
        record = self.record(name)
        return record.status.value if record else "none"

    def result(self, name: str) -> dict[str, Any] | None:
        document = self.json(keys.complete(name))
        return None if document is None or self.record(name) is not None else document["result"]

    def reason(self, name: str) -> dict[str, Any] | None:
        status = self.json(keys.STATUS) or {"jobs": []}
        return next((job["reason"] for job in status["jobs"] if job["name"] == name), None)

    def history(self, name: str) -> list[str]:
        try:
            return self.store.get(keys.job_history(name)).data.decode().splitlines()
        except NotFound:
            return []

    def listed(self, prefix: str = "") -> list[str]:
        return [meta.key for meta in self.store.list(prefix)]

    def in_use(self, runs: Collection[str]) -> int:
        """Return the units of the existing gangs of these runs, independent of all records."""
        gangs = [request for request in self.slices.existing_requests() if request.run in runs]
        return sum(int(request.accelerator_type.rpartition("-")[2]) * request.ref.num_slices for request in gangs)

    def describe(self) -> str:
        return "; ".join(
            f"{key.rpartition('/')[2]}: {self.history(key.rpartition('/')[2])}" for key in self.listed("jobs/")
        )
