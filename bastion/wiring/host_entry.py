"""Which way leads into a host, by its place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bastion.adapters.host_entry.cloud_tpu import CloudTpuHosts
from bastion.adapters.host_entry.this_machine import ThisMachine
from bastion.core.errors import Refused
from bastion.core.model.clusters import cluster_of
from bastion.ports import HostEntry, RunningHost
from bastion.wiring.roots import Root


def host_entry(root: Root, host: RunningHost, *, gcloud_flags: Sequence[str] = ()) -> HostEntry:
    """Return the way into a host. Raises Refused if there is none from here, with what to type instead.

    `gcloud_flags`: for a Cloud TPU node.
    """
    here = ThisMachine(agents=_owner(root))
    if root.local or here.has(host):
        return here
    if host.on_bastion:
        raise Refused(
            f"{host.job!r} runs on the bastion's own VM, which is not this machine; log in there, then type the same: "
            f"gcloud compute ssh VM --zone=ZONE, and there: bastion exec {host.job} --root={root.url}"
        )
    if cluster_of(host.zone):
        namespace = host.identity.partition("/")[2] or "NAMESPACE"
        raise Refused(
            f"{host.shown} is a pod in cluster {cluster_of(host.zone)}, which this command does not enter; find it "
            f"with `kubectl -n {namespace} get pods -l bastion-run={host.run}`, then use "
            f"`kubectl -n {namespace} exec -it POD -c host -- bash`"
        )
    return CloudTpuHosts(flags=gcloud_flags)


def _owner(root: Root) -> tuple[int, ...]:
    """The user of a bastion's folder on this machine: its daemon's, whose agents run jobs."""
    if not root.local:
        return ()
    try:
        return (Path(root.url).stat().st_uid,)
    except OSError:
        return ()
