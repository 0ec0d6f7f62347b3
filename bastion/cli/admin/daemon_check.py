"""`bastion daemon check-config`: show what the operator settings mean, or all of their problems."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bastion.cli.admin import cluster_settings, s3_root_check, settings_warnings
from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, plain, say, table
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import EXIT_REFUSED, NotFound, Refused, StoreError
from bastion.core.model import daemon_settings
from bastion.core.model.bastion_host_jobs import HostJobsMode
from bastion.core.model.daemon_settings import SettingsError
from bastion.core.model.provisioning import Provisioning, ResourceTypeSettings
from bastion.ports import ObjectStore
from bastion.wiring.roots import Root
from quota import Policy, QuotaFileError, load


def _run(call: Invocation) -> int:
    named = any(call.flags[flag].value is not None for flag in ("root", "bastion", "bucket"))
    store, root = _open(call) if named or not call.operands else (None, None)
    path = call.operands[0] if call.operands else keys.DAEMON_SETTINGS
    data = _read_file(path) if call.operands else _read_object(store)
    try:
        settings = daemon_settings.load(data)
    except SettingsError as error:
        for problem in error.problems:
            say(f"bastion: {plain(path)}: {plain(problem)}")
        if call.json:
            problems = [{"line": p.line, "message": p.message, "find": p.find} for p in error.problems]
            emit_json({"valid": False, "problems": problems})
        return EXIT_REFUSED
    warnings = [
        *settings_warnings.warnings(settings, _quota(store)),
        *(s3_root_check.warnings(settings, root) if root is not None and root.scheme == "s3" else ()),
    ]
    if call.json:
        emit_json(_document(settings, warnings))
        return 0
    for line in _lines(settings):
        print(plain(line))
    for warning in warnings:
        say(f"bastion: {plain(path)}: warning: {plain(warning)}")
    return 0


def _open(call: Invocation) -> tuple[ObjectStore, Root]:
    from bastion.cli.connect import open_client

    client, target = open_client(call)
    return client.store, target.root


def _read_file(path: str) -> bytes:
    try:
        if path == "-":
            return sys.stdin.buffer.read(limits.DOCUMENT_MAX_BYTES + 1)
        with Path(path).open("rb") as file:
            return file.read(limits.DOCUMENT_MAX_BYTES + 1)
    except OSError as error:
        raise Refused(f"cannot read the operator settings {plain(path)}: {error.strerror}") from error


def _read_object(store: ObjectStore | None) -> bytes:
    assert store is not None  # it was opened, as no file is given
    found = store.head(keys.DAEMON_SETTINGS)
    if found is not None and found.size > limits.DOCUMENT_MAX_BYTES:
        raise Refused(f"{keys.DAEMON_SETTINGS} is {found.size} bytes long; the maximum is {limits.DOCUMENT_MAX_BYTES}")
    try:
        return store.get(keys.DAEMON_SETTINGS, max_bytes=limits.DOCUMENT_MAX_BYTES).data
    except NotFound:
        say(f"bastion: there is no {keys.DAEMON_SETTINGS} here; only 'bastion daemon run --slices=cloud' requires it")
        return b""


def _quota(store: ObjectStore | None) -> Policy | None:
    """The quota file beside the settings; None if it is elsewhere, unreadable or not valid."""
    try:
        return (
            None if store is None else load(store.get(keys.PROJECT_QUOTAS, max_bytes=limits.QUOTA_FILE_MAX_BYTES).data)
        )
    except (StoreError, QuotaFileError):
        return None


def _lines(settings: Provisioning) -> Iterator[str]:
    where = f", from {settings.endpoint}" if settings.endpoint else ""
    if settings.project:
        yield f"project {settings.project}{where}"
    rows = [
        (
            resource_type,
            " ".join(made.zones),
            *(_nodes(made) if cluster_settings.on_cloud_tpu(settings, resource_type) else ("-", "-", "-", "-")),
        )
        for resource_type, made in settings.resource_types.items()
    ]
    heads = ("TYPE", "PLACES", "SERVICE ACCOUNT", "NETWORK", "EXTERNAL IPS", "RUNTIME VERSION")
    yield from table(heads, rows).splitlines()
    yield from cluster_settings.lines(settings)
    for number, tier in enumerate(settings.tiers):
        reservations = ", ".join(
            f"{resource_type + ': ' if resource_type else ''}{name}"
            for resource_type, name in tier.reservations.items()
            if name
        )
        zones = ", ".join(
            f"{resource_type + ': ' if resource_type else ''}{' '.join(each)}"
            for resource_type, each in tier.zones.items()
        )
        yield f"tier {number}: {tier.model.value}" + f" {reservations}".rstrip() + (f" in {zones}" if zones else "")
    yield f"bastion_host_jobs: {_host_jobs(settings)}"
    budgets = settings.budgets
    yield f"grace: {budgets.eviction_grace_seconds:g} s, {budgets.failure_grace_seconds:g} s after a failure"
    power_off = f"after {budgets.power_off_seconds / 3600:g} h" if budgets.power_off_seconds else "never"
    lost = f"{budgets.infrastructure_attempts} attempts lost to infrastructure"
    yield (
        f"budgets: {lost}, {budgets.zone_wait_seconds:g} s of waiting in a place, {budgets.provision_seconds:g} s "
        f"until hosts are up; abandoned nodes power off {power_off}"
    )


def _host_jobs(settings: Provisioning) -> str:
    match settings.bastion_host_jobs:
        case HostJobsMode.OWN_USER:
            return "each job without a slice and each cleanup command runs as a Unix user of its own, or not at all"
        case HostJobsMode.AS_DAEMON:
            return "jobs without a slice and cleanup commands run as the daemon's user, with all of its rights"
        case HostJobsMode.OFF:
            return "jobs without a slice and cleanup commands are refused"
        case None:
            return "not set; own-user if the daemon can become other users, else off"


def _nodes(made: ResourceTypeSettings) -> tuple[str, str, str, str]:
    """What concerns nodes of Cloud TPU; pods have none of it."""
    return (
        made.service_account or "the project's default",
        made.network + ("/" * bool(made.network and made.subnetwork)) + made.subnetwork or "the project's default",
        "yes" if made.external_ips else "no",
        made.runtime_version or "by type",
    )


def _document(settings: Provisioning, warnings: list[str]) -> dict[str, Any]:
    budgets = settings.budgets
    return {
        "valid": True,
        "project": settings.project,
        "endpoint": settings.endpoint,
        "clusters": {name: cluster_settings.document(cluster) for name, cluster in settings.clusters.items()},
        "types": {
            resource_type: {
                "zones": list(made.zones),
                "network": made.network,
                "subnetwork": made.subnetwork,
                "external_ips": made.external_ips,
                "service_account": made.service_account,
                "runtime_version": made.runtime_version,
                "pod": cluster_settings.pod_document(made.pod)
                if cluster_settings.in_clusters(settings, resource_type)
                else None,
            }
            for resource_type, made in settings.resource_types.items()
        },
        "tiers": [
            {
                "model": tier.model.value,
                "reservations": dict(tier.reservations),
                "zones": {resource_type: list(zones) for resource_type, zones in tier.zones.items()},
            }
            for tier in settings.tiers
        ],
        "bastion_host_jobs": settings.bastion_host_jobs.value if settings.bastion_host_jobs else None,
        "budgets": {
            "eviction_grace_seconds": budgets.eviction_grace_seconds,
            "failure_grace_seconds": budgets.failure_grace_seconds,
            "infrastructure_attempts": budgets.infrastructure_attempts,
            "zone_wait_seconds": budgets.zone_wait_seconds,
            "provision_seconds": budgets.provision_seconds,
            "power_off_seconds": budgets.power_off_seconds,
        },
        "warnings": warnings,
    }


CHECK_CONFIG = Command(
    summary="Checks the operator settings and shows what they mean; exits with 64 if they are not valid.",
    usage="[FILE] [--root=ROOT] [--output=json]",
    details="""FILE may be - for stdin; default: config/daemon.toml under the ROOT. Every problem is shown with its
        line, and every missing value with the command that finds it. PLACES are zones of Cloud TPU and clusters
        (k8s:NAME), in the order in which they are tried.

        If a bastion is named, the settings are compared with the tiers and resource types of its quota file. A daemon
        whose settings are not valid keeps using the last valid ones.""",
    examples=(
        "bastion daemon check-config daemon.toml",
        "bastion daemon check-config daemon.toml --root=gs://my-bucket/team-bastion",
        "bastion daemon check-config --root=gs://my-bucket/team-bastion",
    ),
    operands=(0, 1),
    takes_output=True,
    run=_run,
)
