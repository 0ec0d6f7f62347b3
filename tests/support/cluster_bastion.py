"""A bastion whose slices are pods of an emulated cluster: the cluster in this process, the daemon in its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import quota
from bastion.core.bucket import keys, outputs
from bastion.core.errors import NotFound
from bastion.core.status import packing
from bastion.core.status.document import JobEntry, StatusDocument
from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.markers import HOME_MARKER
from bastion.processes import marked
from bastion.wiring.local import down
from bastion.wiring.local_home import LocalHome
from bastion.wiring.local_starter_quota import starter_quota
from bastion.wiring.roots import open_root
from tests.support.emulated_cluster import NAMESPACE, EmulatedCluster, emulated_cluster
from tests.support.local_root import USER, LocalRoot, RootJob
from tests.support.waiting import until

QUICK_DAEMON = str(Path(__file__).parents[1] / "e2e" / "quick_daemon.py")
JOBSETS = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
# A gang that is half placed has longer than a busy machine takes to place the rest.
_SETTINGS = """
[clusters.test]
kubeconfig = "{kubeconfig}"
uid = "{uid}"
queue = "{queue}"
agent_image = "{agent_image}"
job_secrets = ["training"]

[defaults]
zones = ["k8s:test"]

[defaults.pod]
image = "this-machine"
grace_seconds = 12
spot_grace_seconds = 12
secrets = {{ TRAINING_KEY = "training/key", ABSENT_KEY = "training/absent" }}

[types.v4]
[types.v5litepod]
[types.v6e]
[types.a100]
input_cache = "/cache/inputs"
input_cache_gib = 1

[types.a100.pod]
volumes = [{{ path = "/cache", host_path = "{folder}/cache" }}]

[[tiers]]
model = "on-demand"

[budgets]
infrastructure_attempts = 4
zone_wait_seconds = 3
"""
_ZONE = """
[types.v5p]
zones = ["local"]
"""


@dataclass
class ClusterBastion:
    """A ROOT and the cluster of its slices."""

    root: LocalRoot
    cluster: EmulatedCluster
    folder: Path
    zone: bool
    agent_image: str = ""

    def job(self, name: str, command: str, *, instance_type: str = "tpu-v4-8", **options: Any) -> ClusterJob:
        return ClusterJob(self, name, command, instance_type=instance_type, **options)

    def known(self, name: str) -> ClusterJob:
        """A job that someone else has submitted."""
        return ClusterJob(self, name)

    def write_settings(self, kubeconfig: str = "") -> None:
        """Tell the daemon how to reach the cluster; by default the right way."""
        settings = self.cluster.settings
        text = _SETTINGS.format(
            kubeconfig=kubeconfig or settings.kubeconfig,
            uid=settings.uid,
            queue=settings.queue,
            agent_image=self.agent_image,
            folder=self.folder,
        )
        if self.zone:
            text = 'project = "local"\n' + text + _ZONE
        present = self.root.store.head(keys.DAEMON_SETTINGS)
        self.root.store.put(
            keys.DAEMON_SETTINGS, text.encode(), generation=present.generation if present is not None else 0
        )

    @property
    def environment(self) -> dict[str, str]:
        """A user's."""
        return {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "BASTION_HOME": str(self.root.home.path),
            "BASTION_ROOT": self.root.url,
            "USER": USER,
            "LOGNAME": USER,
        }

    def status(self) -> StatusDocument:
        return packing.read(self.root.store.get(keys.STATUS).data)

    def cli(self, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """What a user types."""
        command = [sys.executable, "-m", "bastion.cli.main", *arguments]
        return subprocess.run(
            command, env=self.environment, cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )


class ClusterJob(RootJob):
    """A job of a `ClusterBastion`, as bucket and cluster show it."""

    def __init__(self, bastion: ClusterBastion, name: str, command: str = "", **options: Any) -> None:
        """Submit it, if there is a command."""
        self.bastion = bastion
        if command:
            super().__init__(bastion.root, name, command, **options)
        else:
            self.name, self.store = name, bastion.root.store

    def pods(self) -> list[Obj]:
        """Pods of its present attempt, in the order of its hosts."""
        entry = self.entry()
        if entry is None or entry.attempt is None:
            return []
        selector = f"bastion-run={entry.uid}-{entry.attempt}"
        found: list[Obj] = self.bastion.cluster.client.list(PODS, labelSelector=selector)["items"]
        labels = ("jobset.sigs.k8s.io/job-index", "batch.kubernetes.io/job-completion-index")
        return sorted(found, key=lambda pod: [int(pod["metadata"]["labels"][label]) for label in labels])

    def entry(self) -> JobEntry | None:
        """What `bastion list` and `why` are made from."""
        try:
            return next((each for each in self.bastion.status().jobs if each.name == self.name), None)
        except NotFound:  # nothing is published yet
            return None

    def printed(self, text: str, *, run: int = 1, host: int = 0) -> bool:
        return any(name.endswith(f"-{run}") and text in self.output(name, host) for name in self.runs())

    def await_line(self, text: str, *, run: int = 1, host: int = 0, seconds: float = 60.0) -> None:
        """Wait until that run has printed a line."""
        until(lambda: self.printed(text, run=run, host=host) or self.result(), seconds)
        assert self.printed(text, run=run, host=host), self.result()

    def ended(self, seconds: float = 90.0) -> dict[str, Any]:
        """Its result, once the state is gone too."""
        until(lambda: self.result() and self.store.head(keys.state(self.name)) is None, seconds)
        result = self.result()
        assert result is not None
        return result

    def history(self) -> str:
        try:
            return self.store.get(keys.job_history(self.name)).data.decode()
        except NotFound:
            return ""

    def outputs(self, host: int) -> dict[str, bytes]:
        """The output files of a host, as its newest manifest has them."""
        found = [
            outputs.read(self.store.get(meta.key).data)
            for meta in self.store.list(f"outputs/{self.name}/")
            if f"/worker-{host}/manifest-" in meta.key
        ]
        if not found:
            return {}
        run = keys.Run.parse(found[-1].run)
        assert run is not None
        folder = keys.outputs(self.name, run.uid, host)
        return {
            path: b"".join(self.store.get(folder + part.object).data for part in file.parts)
            for path, file in found[-1].files.items()
        }


def causes(result: dict[str, Any]) -> list[str]:
    return [attempt["cause"] for attempt in result["attempts"]]


@contextmanager
def cluster_bastion(
    folder: Path, *pools: str, stale_seconds: float = 90.0, zone: bool = False, kueue_quota: bytes = b"", url: str = ""
) -> Iterator[ClusterBastion]:
    """A bastion with its daemon; afterwards no process of a pod may be left.

    Args:
        url: Its ROOT, if that is on S3, where pods get the agent by an init container; default: a folder.
        stale_seconds: Without an answer for so long, the cluster is silent.
        zone: Whether v5p comes from an emulated Cloud TPU.
        kueue_quota: Kueue decides on the cluster, by this quota file.
    """
    # Pods inherit it.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_MARKER, str(folder))
        with _bastion(
            folder, *pools, stale_seconds=stale_seconds, zone=zone, kueue_quota=kueue_quota, url=url
        ) as bastion:
            yield bastion
        until(lambda: marked(HOME_MARKER, str(folder)) == [], 10.0)


@contextmanager
def _bastion(
    folder: Path, *pools: str, stale_seconds: float, zone: bool, kueue_quota: bytes, url: str
) -> Iterator[ClusterBastion]:
    home = LocalHome(folder / "home")
    home.run_dir.mkdir(parents=True)
    state = folder / "cluster"
    state.mkdir()
    with emulated_cluster(state, *pools, policy=quota.load(kueue_quota) if kueue_quota else None) as cluster:
        agent_image = "this-machine" if url else ""
        url = url or str(folder / "root" / "e2e-bastion")
        root = LocalRoot(home=home, url=url, store=open_root(url))
        root.store.put(keys.PROJECT_QUOTAS, kueue_quota or starter_quota(USER, pools), generation=0)
        bastion = ClusterBastion(root, cluster, state, zone, agent_image)
        bastion.write_settings()
        root.start_daemon(QUICK_DAEMON, str(stale_seconds), "emulated" if zone else "cloud")
        try:
            yield bastion
        finally:
            for daemon in root.daemons:
                daemon.kill()
                daemon.wait()
            down(home, say=lambda _: None)
