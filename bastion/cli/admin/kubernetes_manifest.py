"""`bastion kubernetes manifest`: what a bastion needs inside a cluster."""

from __future__ import annotations

import re

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, say
from bastion.cli.target import resolve
from bastion.core.errors import Refused
from bastion.wiring.roots import parse_root


def _define(values: flags.FlagValues) -> None:
    for name, default, what in (
        ("image", None, "The bastion's image, with the package's extra `kubernetes`. Required."),
        ("namespace", "bastion", "The namespace of the daemon and of the jobs' pods."),
        ("name", None, "The name of the Deployment and of the daemon's account (default: the bastion's name)."),
        ("service_account", "bastion-worker", "The account of the jobs' pods."),
        ("quota_root", None, "The daemon's --quota_root."),
        ("daemon_identity", None, "The cloud account of the daemon: an e-mail address on GKE, a role's ARN on EKS."),
        ("worker_identity", None, "The cloud account of the jobs' pods."),
        (
            "workload_identity_provider",
            None,
            "A provider of a Google workload identity pool that trusts the cluster, where there is no Google metadata "
            "server.",
        ),
        ("queue", None, "The LocalQueue of each project, `bastion-{project}`, if Kueue decides in the cluster."),
    ):
        flags.DEFINE_string(name, default, what, flag_values=values)
    flags.DEFINE_enum("provider", "gke", ["gke", "eks", "generic"], "The kind of cluster.", flag_values=values)


def _run(call: Invocation) -> int:
    from bastion.client import cluster_manifest, yaml_writer

    given = call.flags
    if not given.image:
        raise Refused("kubernetes manifest requires --image=IMAGE, the bastion's image; see the Dockerfile")
    root = resolve(given).root
    wanted = cluster_manifest.Installation(
        name=given.name or _as_name(root.bastion),
        namespace=given.namespace,
        image=given.image,
        root=root.url,
        quota_root=parse_root(given.quota_root).url if given.quota_root else "",
        service_account=given.service_account,
        provider=given.provider,
        daemon_identity=given.daemon_identity or "",
        worker_identity=given.worker_identity or "",
        workload_identity_provider=given.workload_identity_provider or "",
        queue=given.queue or "",
    )
    found = cluster_manifest.objects(wanted)
    if call.json:
        emit_json({"apiVersion": "v1", "kind": "List", "items": found})
    else:
        print(yaml_writer.documents(found), end="")
    say(f"add to config/daemon.toml:\n\n{cluster_manifest.settings(wanted)}")
    return 0


def _as_name(bastion: str) -> str:
    """The bastion's name, in what Kubernetes accepts."""
    return re.sub(r"[^a-z0-9-]", "-", bastion.lower())


MANIFEST = Command(
    summary="Prints the objects that run a bastion's daemon inside a Kubernetes cluster.",
    usage="--root=gs://BUCKET/NAME-bastion --image=IMAGE [--namespace=NAMESPACE] [--output=json]",
    details=(
        "A namespace, the accounts of the daemon and of the jobs' pods, the daemon's permissions, and a Deployment. "
        "The permissions are exactly what the daemon uses: JobSets, Jobs, pods and events of that namespace, and the "
        "namespace kube-system, whose uid identifies the cluster. With --queue, also Kueue's Workloads.\n\n"
        "Nothing is sent to a cluster: pipe the output to `kubectl apply -f -`. On stderr it prints the table that "
        "the operator settings need. docs/how-to/run-on-kubernetes.md has every step."
    ),
    examples=(
        "bastion kubernetes manifest --root=gs://my-bucket/team-bastion --image=REGISTRY/bastion:v1",
        "bastion kubernetes manifest --root=gs://my-bucket/team-bastion --image=REGISTRY/bastion:v1 --output=json",
    ),
    takes_output=True,
    define=_define,
    run=_run,
)
