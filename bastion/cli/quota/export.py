"""`bastion quota export`: the quota file as Kueue's objects, or what differs from them in a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, plain, say
from bastion.cli.quota import file as quota_file
from bastion.cli.quota import quota_root
from bastion.cli.target import resolve
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import EXIT_REFUSED, NotFound, Refused
from quota import Policy, QuotaFileError, load

if TYPE_CHECKING:
    from bastion.client.quota.kueue_drift import Difference
    from bastion.core.model.clusters import ClusterSettings
    from bastion.core.model.provisioning import Provisioning

EXIT_DRIFT = 1


def _define(values: flags.FlagValues) -> None:
    quota_root.define(values)
    flags.DEFINE_enum("format", "kueue", ["kueue"], "What to write: objects of Kueue.", flag_values=values)
    flags.DEFINE_string(
        "settings", None, "A file with the operator settings. Default: the bastion's own.", flag_values=values
    )
    flags.DEFINE_string(
        "cluster",
        "",
        "The cluster in the operator settings. Default: the one with a queue, if there is only one.",
        flag_values=values,
    )
    flags.DEFINE_boolean(
        "check", False, "Compare with the objects in the cluster; exit with 1 if any differs.", flag_values=values
    )
    flags.DEFINE_string(
        "kubeconfig",
        "",
        "For --check: your kubeconfig for that cluster, with --context. Default: as the operator settings say.",
        flag_values=values,
    )
    flags.DEFINE_string("context", "", "For --check: a context of --kubeconfig.", flag_values=values)


def _run(call: Invocation) -> int:
    from bastion.client.quota import kueue_export
    from bastion.wiring.daemon import node_label

    if (call.flags.kubeconfig or call.flags.context) and not call.flags.check:
        raise Refused("--kubeconfig and --context require --check")
    if call.flags.context and not call.flags.kubeconfig:
        raise Refused("--context requires --kubeconfig")
    try:
        policy = load(quota_file.read(call.operands[0])) if call.operands else _in_force(call)
    except QuotaFileError as error:
        quota_file.tell_problems(call.operands[0], error, json=call.json)
        return EXIT_REFUSED
    settings = _settings(call)
    cluster = kueue_export.choose_cluster(settings, call.flags.cluster)
    root = resolve(call.flags).root
    label = node_label(root)
    found = kueue_export.export(policy, settings, cluster=cluster, label=label, name=kueue_export.name_of(root.bastion))
    if call.flags.check:
        return _check(call, settings.clusters[cluster], found.objects, label)
    if call.json:
        emit_json({"apiVersion": "v1", "kind": "List", "items": list(found.objects)})
    else:
        from bastion.client import yaml_writer

        print(yaml_writer.documents(found.objects), end="")
    for note in found.notes:
        say(f"bastion: {plain(note)}")
    return 0


def _in_force(call: Invocation) -> Policy:
    """The quota file that the daemon uses; the present one if no daemon has reported."""
    client, suffix = quota_root.open_quota_client(call)
    shown, reported = client.present(), client.in_force()
    if reported is not None and reported.generation and reported.generation != shown.generation:
        former = client.former(reported.generation)
        if former is not None:
            say(f"bastion: exporting the quota file in force, of generation {former.generation}")
            shown = former
    if shown.policy is None:
        problem = f" is not valid: {plain(shown.problem)}" if shown.generation else " does not exist"
        raise Refused(f"the quota file {plain(client.url)}{problem}; name a file: bastion quota export FILE{suffix}")
    return shown.policy


def _settings(call: Invocation) -> Provisioning:
    from bastion.cli.connect import open_client
    from bastion.core.model import daemon_settings
    from bastion.core.model.daemon_settings import SettingsError

    path = call.flags.settings or keys.DAEMON_SETTINGS
    try:
        if call.flags.settings:
            data = Path(path).read_bytes()
        else:
            data = open_client(call)[0].store.get(path, max_bytes=limits.DOCUMENT_MAX_BYTES).data
        return daemon_settings.load(data)
    except OSError as error:
        raise Refused(f"cannot read the operator settings {plain(path)}: {error.strerror}") from error
    except NotFound as error:
        raise Refused(
            f"there are no operator settings {plain(path)}, which say what a cluster has; write them, or use "
            "--settings=FILE"
        ) from error
    except SettingsError as error:
        raise Refused(f"{plain(path)} is not valid: {plain(error)}; see 'bastion daemon check-config'") from error


def _check(call: Invocation, cluster: ClusterSettings, wanted: Sequence[Any], label: str) -> int:
    from bastion.client.quota.kueue_drift import ABSENT, differences

    if call.flags.kubeconfig:
        cluster = dataclasses.replace(
            cluster, server="", token_file="", ca_file="", kubeconfig=call.flags.kubeconfig, context=call.flags.context
        )
    found = list(differences(wanted, _objects(cluster), label=label))
    if call.json:
        emit_json({"cluster": cluster.name, "objects": len(wanted), "differences": list(map(_document, found))})
    else:
        for each in found:
            print(plain(str(each)))
    if not found:
        say(f"cluster {cluster.name} has all {len(wanted)} objects as the quota file says")
    elif any(each.wanted is not ABSENT for each in found):
        say("bastion: apply the export: bastion quota export | kubectl apply -f -")
    return EXIT_DRIFT if found else 0


def _objects(cluster: ClusterSettings) -> Sequence[Any]:
    from bastion.adapters.system_clock import SystemClock
    from bastion.client.quota import kueue_drift

    try:
        from bastion.adapters.kubernetes.api import KubernetesApi
        from bastion.adapters.kubernetes.cluster_identity import ClusterIdentity
    except ModuleNotFoundError as error:
        raise Refused(
            f"the Python package {error.name} is missing, which --check needs; install bastion[kubernetes]"
        ) from error
    api = KubernetesApi(cluster, clock=SystemClock(), remedy="correct the address, or run the command again")
    try:
        # A server that is down may take ten seconds to be known as such.
        say(f"bastion: reading the objects of cluster {plain(cluster.name)}")
        ClusterIdentity(api, cluster).check()
        return kueue_drift.read(lambda path: api.list(path).items, cluster.namespace)
    finally:
        api.close()


def _document(found: Difference) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "name": found.name,
        "field": found.field or None,
        "wanted": found.wanted,
        "found": found.found,
    }


EXPORT = Command(
    summary="Writes a quota file as Kueue's objects for a cluster where Kueue decides.",
    usage="[FILE] [--format=kueue] [--settings=FILE] [--cluster=NAME] [--check [--kubeconfig=FILE]] [--output=json]",
    details="""Without FILE, it is the quota file in force; FILE may be - for stdin. The operator settings say what a
        resource type and a tier are in the cluster, and how its queues are named. The objects are a ResourceFlavor for
        each resource type and tier, a ClusterQueue and a LocalQueue for each project, a Cohort, and the priority
        classes, all kueue.x-k8s.io/v1beta2. Quotas are in chips; what rounding leaves is the Cohort's.

        Nothing is sent to a cluster: pipe the output to `kubectl apply -f -`. On stderr it prints what Kueue does not
        do as the quota file says.

        --check reads the cluster's objects instead. It prints each field that differs, missing objects, and objects of
        this bastion that the export no longer has, and exits with 1 if there are any.""",
    examples=(
        "bastion quota export --format=kueue > queues.yaml",
        "bastion quota export new.config --settings=daemon.toml --cluster=training",
        "bastion quota export --check --kubeconfig=$HOME/.kube/config",
    ),
    operands=(0, 1),
    takes_output=True,
    define=_define,
    run=_run,
)
