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

from bastion.core.bucket import keys, outputs
from bastion.core.errors import NotFound
from bastion.core.status import packing
from bastion.core.status.document import JobEntry, StatusDocument
from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.markers import HOME_MARKER
from bastion.processes import marked
from bastion.wiring.local import LocalHome, down, starter_quota
from bastion.wiring.roots import open_root
from tests.support.emulated_cluster import NAMESPACE, EmulatedCluster, emulated_cluster
from tests.support.local_root import USER, LocalRoot, RootJob
from tests.support.waiting import until

QUICK_DAEMON = str(Path(__file__).parents[1] / "e2e" / "quick_daemon.py")
JOBSETS = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
# A gang that is half placed has a second.
_SETTINGS = """
project = "local"

[clusters.test]
kubeconfig = "{kubeconfig}"
uid = "{uid}"

[defaults]
zones = ["k8s:test"]

[defaults.pod]
image = "this-machine"
grace_seconds = 12
spot_grace_seconds = 12

# On the emulated Cloud TPU.
[types.v5p]
zones = ["local"]

[types.v4]
[types.v5litepod]
[types.v6e]

[[tiers]]
model = "on-demand"

[budgets]
infrastructure_attempts = 4
zone_wait_seconds = 1
"""


@dataclass
class ClusterBastion:
    """A ROOT and the cluster of its slices."""

    root: LocalRoot
    cluster: EmulatedCluster
    folder: Path

    def job(self, name: str, command: str, *, instance_type: str = "tpu-v4-8", **options: Any) -> ClusterJob:
        return ClusterJob(self, name, command, instance_type=instance_type, **options)

    def known(self, name: str) -> ClusterJob:
        """A job that someone else has submitted."""
        return ClusterJob(self, name)

    def write_settings(self, kubeconfig: str = "") -> None:
        """Tell the daemon how to reach the cluster; by default the right way."""
        settings = self.cluster.settings
        text = _SETTINGS.format(kubeconfig=kubeconfig or settings.kubeconfig, uid=settings.uid)
        present = self.root.store.head(keys.DAEMON_SETTINGS)
        self.root.store.put(
            keys.DAEMON_SETTINGS, text.encode(), generation=present.generation if present is not None else 0
        )

    def status(self) -> StatusDocument:
        return packing.read(self.root.store.get(keys.STATUS).data)

    def cli(self, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """What a user types."""
        environment = {
            **os.environ,
            "BASTION_HOME": str(self.root.home.path),
            "BASTION_ROOT": self.root.url,
            "USER": USER,
            "LOGNAME": USER,
        }
        command = [sys.executable, "-m", "bastion.cli.main", *arguments]
        return subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120, check=False
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
        return next((each for each in self.bastion.status().jobs if each.name == self.name), None)

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
def cluster_bastion(folder: Path, *pools: str, stale_seconds: float = 0.0) -> Iterator[ClusterBastion]:
    """A bastion with its daemon; afterwards no process of a pod may be left."""
    # Pods inherit it.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_MARKER, str(folder))
        with _bastion(folder, *pools, stale_seconds=stale_seconds) as bastion:
            yield bastion
        until(lambda: marked(HOME_MARKER, str(folder)) == [], 10.0)


@contextmanager
def _bastion(folder: Path, *pools: str, stale_seconds: float) -> Iterator[ClusterBastion]:
    home = LocalHome(folder / "home")
    home.run_dir.mkdir(parents=True)
    state = folder / "cluster"
    state.mkdir()
    with emulated_cluster(state, *pools) as cluster:
        url = str(folder / "root" / "e2e-bastion")
        root = LocalRoot(home=home, url=url, store=open_root(url))
        root.store.put(keys.PROJECT_QUOTAS, starter_quota(USER), generation=0)
        bastion = ClusterBastion(root, cluster, state)
        bastion.write_settings()
        root.start_daemon(QUICK_DAEMON, *([str(stale_seconds)] if stale_seconds else []))
        try:
            yield bastion
        finally:
            for daemon in root.daemons:
                daemon.kill()
                daemon.wait()
            down(home, say=lambda _: None)
