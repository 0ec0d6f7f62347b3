"""The folders of the local bastion.

Everything is below one home folder:

    buckets/permanent/local-bastion/   the bastion's ROOT, quota file included
    emulator/                          the Cloud TPU emulator's state and its VMs
    emulator-kubernetes/               the same of an emulated Kubernetes cluster, if the user wants one
    hosts/                             jobs without a slice, one folder each
    agent/                             the agent that slices run, as last packed
    run/                               pid files and output of the daemon, the emulator and the storage endpoint

The storage endpoint serves the folders in `buckets/` as `gs://` buckets, so that jobs use the same libraries as in the
cloud. `gs://permanent/...` is the bastion's own bucket.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from bastion.core.errors import BastionError
from bastion.emulators.agents import agents_folder
from bastion.wiring.roots import Root, local_root


class LocalBastionError(BastionError):
    exit_code = 75


@dataclass(frozen=True, slots=True)
class LocalHome:
    """The folders of one local bastion."""

    path: Path

    @property
    def root(self) -> Root:
        return local_root(self.path)

    @property
    def emulator_dir(self) -> Path:
        return self.path / "emulator"

    @property
    def kubernetes_dir(self) -> Path:
        return self.path / "emulator-kubernetes"

    @property
    def buckets_dir(self) -> Path:
        return self.path / "buckets"

    @property
    def agent_dir(self) -> Path:
        return agents_folder(self.path / "agent")

    @property
    def run_dir(self) -> Path:
        return self.path / "run"

    def hosts_dir(self, root: Root) -> Path:
        """The folders of jobs without a slice, below one per bastion, so that no bastion sweeps another's jobs."""
        digest = hashlib.sha256(root.url.encode()).hexdigest()[:12]
        return self.path / "hosts" / f"{root.bastion}-{digest}"

    def ticks_dir(self, root: Root) -> Path:
        """Where the daemon of that ROOT keeps recorded ticks."""
        return self.path / "ticks" / self.hosts_dir(root).name

    @property
    def marker(self) -> str:
        return str(self.path)
