"""`config/daemon.toml`: from an operator's bytes to `Provisioning`, or to a list of all problems.

A problem with a missing value names the command that finds the value. Unknown keys are problems, because a misspelled
key would get its default.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tomli
from pydantic import ValidationError

from bastion.core import limits
from bastion.core.bucket.protocol import HOST_JOB_USER
from bastion.core.errors import InvalidDocument
from bastion.core.model import instance_types, queue_modes
from bastion.core.model.bastion_host_jobs import HostJobsMode
from bastion.core.model.budgets import Budgets
from bastion.core.model.clusters import ClusterSettings, Provider, cluster_of
from bastion.core.model.gangs import CapacityModel
from bastion.core.model.pods import PodSettings, Toleration, Volume
from bastion.core.model.provisioning import ProjectAccounts, Provisioning, ResourceTypeSettings, Tier, why_not_in
from bastion.core.model.settings_tables import (
    BudgetsTable,
    ClusterTable,
    GraceTable,
    PodTable,
    ProjectTable,
    ResourceTypeTable,
    SettingsFile,
    Table,
    TierTable,
    TolerationTable,
    VolumeTable,
)
from quota.lines import Lines

# The command that finds a key's value, by the last part of the key. `{project}` is the file's own, if present.
FINDERS = {
    "project": "gcloud config get project",
    "zones": "gcloud compute tpus locations list --project={project}",
    "network": "gcloud compute networks list --project={project}",
    "subnetwork": "gcloud compute networks subnets list --project={project}",
    "service_account": "gcloud iam service-accounts list --project={project}",
    "runtime_version": "gcloud compute tpus tpu-vm versions list --project={project} --zone={zone}",
    "tiers": "bastion quota show",
    "model": "gcloud alpha compute tpus reservations list --project={project} --zone={zone}",
    "reservation": "gcloud alpha compute tpus reservations list --project={project} --zone={zone}",
    "queue": "kubectl get localqueues --all-namespaces",
    "uid": "kubectl get namespace kube-system -o yaml",
    "context": "kubectl config get-contexts",
}


# Python reads such a number but cannot format it in a message.
_LONG_NUMBER = re.compile(r"0[xob][0-9A-Fa-f_]{1000}")


@dataclass(frozen=True, slots=True)
class SettingsProblem:
    """One problem. `line`: from 1, or None; `find`: the command that finds the right value, or empty."""

    line: int | None
    message: str
    find: str = ""

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.message}" + (f"; find it with: {self.find}" if self.find else "")


class SettingsError(InvalidDocument):
    def __init__(self, problems: tuple[SettingsProblem, ...]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def load(data: bytes) -> Provisioning:
    """Read and check a settings file; raises SettingsError."""
    text, document = _parse(data)
    reader = _Reader(document, Lines(text))
    file = reader.file()
    settings = None if file is None or reader.problems else _provisioning(file)
    if file is not None and settings is not None:
        reader.modes(settings, file)
    if settings is None or reader.problems:
        raise SettingsError(tuple(sorted(reader.problems, key=lambda problem: problem.line or 0)))
    return settings


def _refuse(message: str) -> SettingsError:
    return SettingsError((SettingsProblem(None, message),))


def _parse(data: bytes) -> tuple[str, dict[str, Any]]:
    if len(data) > limits.DOCUMENT_MAX_BYTES:
        raise _refuse(f"the file is larger than the maximum of {limits.DOCUMENT_MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
        if _LONG_NUMBER.search(text):
            raise _refuse("a number is too long; correct it")
        return text, tomli.loads(text)
    except UnicodeDecodeError as error:
        raise _refuse("the file is not UTF-8 text; save it as UTF-8") from error
    except (ValueError, RecursionError) as error:  # tomli's error is a ValueError, as is that of huge integers
        raise _refuse(
            f"the file is not valid TOML: {str(error)[:300] or 'it nests too deeply'}; correct the syntax"
        ) from error


class _Reader:
    def __init__(self, document: Mapping[str, Any], lines: Lines) -> None:
        self._document = document
        self._lines = lines
        self.problems: list[SettingsProblem] = []

    @property
    def _without_slices(self) -> bool:
        """Whether the file is only about the daemon's own host."""
        return "bastion_host_jobs" in self._document and not _SLICES.intersection(self._document)

    def file(self) -> SettingsFile | None:
        if not self._without_slices:
            self._project()
            if "tiers" not in self._document:
                self._problem("tiers is missing", "tiers", find="tiers")
        try:
            file = SettingsFile.model_validate(self._document)
        except ValidationError as error:
            for detail in error.errors():
                self._add_form(detail["type"], detail["loc"], detail["msg"])
            file = None
        if not self._without_slices:
            self._resource_types()
        self._reservations()
        self._clusters()
        if file is not None and not self.problems:
            self._places(file)
        return file

    def modes(self, settings: Provisioning, file: SettingsFile) -> None:
        """Report types for which it depends on the place whether Kueue decides, and caches that end with their pod."""
        for name, each in settings.resource_types.items():
            own = file.types.get(name)
            table: tuple[str, ...] = ("types", name) if own is not None and own.input_cache else ("defaults",)
            line = self._lines.of(*table, "input_cache")
            lost = bool(each.input_cache) and any(map(cluster_of, each.zones)) and not _outlives_pods(each)
            if lost and all(problem.line != line for problem in self.problems):
                self._problem(
                    f"{_shown(table)}.input_cache is {each.input_cache}, but no writable volume of the pods with a "
                    "claim or a host_path is there, so it would end with each pod; add one to the pod's volumes",
                    *(*table, "input_cache"),
                )
        for path, message in queue_modes.mixed(settings, [name for name, table in file.types.items() if table.zones]):
            self._problem(message, *path)

    def _problem(self, message: str, *path: str | int, find: str = "") -> None:
        if len(self.problems) < _PROBLEMS_MAX:
            self.problems.append(SettingsProblem(self._lines.of(*path), message, find and self._finder(find)))

    def _finder(self, key: str) -> str:
        command = FINDERS.get(key, "")
        project = self._document.get("project")
        zones = [zone for _, table in self._tables() for zone in _texts(table.get("zones"))]
        return command.format(
            project=project if isinstance(project, str) and project else "PROJECT", zone=zones[0] if zones else "ZONE"
        )

    def _add_form(self, problem_type: str, place: tuple[str | int, ...], message: str) -> None:
        path = _in_the_file(place, self._document, missing=problem_type == "missing")
        name = _shown(path)
        last = next((str(part) for part in reversed(path) if isinstance(part, str)), "")
        if problem_type == "missing":
            self._problem(f"{name} is missing", *path, find=last)
        elif problem_type == "extra_forbidden":
            known = _known_keys(path)
            near = difflib.get_close_matches(last, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"valid keys: {', '.join(known)}"
            self._problem(f"{name} is not a valid key; {hint}", *path)
        elif problem_type == "value_error":
            self._problem(f"{name} {message.partition(', ')[2]}", *path)
        elif not any(problem.message.startswith(f"{name} ") for problem in self.problems):
            # A value with two possible forms is reported once.
            find = "" if (path[0], last) == ("clusters", "service_account") else last
            self._problem(f"{name} is not valid: {message[0].lower()}{message[1:]}", *path, find=find)

    def _tables(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield `[defaults]` under "", then the tables of the resource types."""
        types = self._document.get("types")
        entries = {"": self._document.get("defaults"), **(types if isinstance(types, dict) else {})}
        return ((name, table) for name, table in entries.items() if isinstance(table, dict))

    def _resource_types(self) -> None:
        tables = dict(self._tables())
        defaults = tables.pop("", {})
        served = instance_types.served_types()
        for resource_type in tables:
            if resource_type in served:
                continue
            meant = instance_types.resource_type_of(resource_type)
            hint = f"did you mean {meant}?" if meant in served else f"served: {', '.join(served)}"
            self._problem(f"types.{resource_type} is not a served resource type; {hint}", "types", resource_type)
        if not tables and "zones" not in defaults:
            self._problem("defaults.zones is missing", "defaults", find="zones")
        wanted: list[tuple[str, Mapping[str, Any]]] = [
            (f"types.{resource_type}", tables[resource_type]) for resource_type in tables
        ]
        if not tables or "zones" in defaults:
            wanted = [("defaults", defaults)]  # every type is provisioned, with at least these
        for key in ("zones", "service_account"):
            for name, table in wanted:
                zones = _texts(table.get("zones")) or _texts(defaults.get("zones"))
                if key == "service_account" and zones and all(map(cluster_of, zones)):
                    continue  # a cluster's pods have its own
                if key not in table and key not in defaults and (key, name) != ("zones", "defaults"):
                    self._problem(f"{name}.{key} is missing", *name.split("."), find=key)

    def _reservations(self) -> None:
        tiers = self._document.get("tiers")
        for number, tier in enumerate(tiers if isinstance(tiers, list) else ()):
            if not isinstance(tier, dict):
                continue
            if tier.get("model") == CapacityModel.RESERVED.value and not tier.get("reservation"):
                self._problem(f"tiers[{number}].reservation is missing", "tiers", number, find="reservation")
            elif tier.get("reservation") and tier.get("model") in ("on-demand", "spot"):
                self._problem(
                    f'tiers[{number}].reservation requires model "reserved", not "{tier["model"]}"; remove one of them',
                    *("tiers", number, "reservation"),
                )
            for key in ("reservation", "zones"):
                for resource_type in tier[key] if isinstance(tier.get(key), dict) else ():
                    if resource_type not in instance_types.served_types():
                        self._problem(
                            f"tiers[{number}].{key}.{resource_type} is not a served resource type", "tiers", number
                        )

    def _clusters(self) -> None:
        """Report places in unknown clusters."""
        clusters = self._document.get("clusters")
        known = list(clusters) if isinstance(clusters, dict) else []
        zones = [(zone, (*path, "zones")) for path, table in self._tables_of_zones() for zone in _texts(table)]
        for zone, path in zones:
            name = cluster_of(zone)
            if name and name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean k8s:{near[0]}?" if near else f"add a table [clusters.{name}]"
                self._problem(f"{_shown(path)} names {zone}, but there is no cluster {name}; {hint}", *path)
        for name in known:
            table = clusters[name] if isinstance(clusters, dict) else None
            if isinstance(table, dict) and table.get("server") and table.get("kubeconfig"):
                text = f"clusters.{name} has both server and kubeconfig; remove one of them"
                self._problem(text, "clusters", name, "server")

    def _project(self) -> None:
        zones = [zone for _, table in self._tables_of_zones() for zone in _texts(table)]
        if "project" not in self._document and not (zones and all(map(cluster_of, zones))):
            self._problem("project is missing", "project", find="project")

    def _tables_of_zones(self) -> Iterator[tuple[tuple[str | int, ...], object]]:
        for name, table in self._tables():
            yield ("types", name) if name else ("defaults",), table.get("zones")
        tiers = self._document.get("tiers")
        for number, tier in enumerate(tiers if isinstance(tiers, list) else ()):
            zones = tier.get("zones") if isinstance(tier, dict) else None
            for each in zones.values() if isinstance(zones, dict) else [zones]:
                yield ("tiers", number), each

    def _places(self, file: SettingsFile) -> None:
        """Report types in places that do not offer them."""
        for resource_type, table in file.types.items():
            for zone in table.zones or ():
                reason = why_not_in(zone, resource_type, _provider(file, zone))
                if reason:
                    self._problem(f"types.{resource_type}.zones: {reason}", "types", resource_type, "zones")


_PROBLEMS_MAX = 100
# Keys that are about slices.
_SLICES = frozenset({"project", "endpoint", "token_file", "clusters", "defaults", "types", "tiers", "projects"})


def _outlives_pods(settings: ResourceTypeSettings) -> bool:
    """Whether the type's input cache is in a volume that it can use."""
    paths = [volume.path.rstrip("/") for volume in settings.pod.volumes if not (volume.read_only or volume.bucket)]
    return any(f"{settings.input_cache}/".startswith(f"{path}/") for path in paths)


def _in_the_file(place: tuple[str | int, ...], document: Any, *, missing: bool) -> tuple[str | int, ...]:
    """The part of a finding's path that exists in the document, without the schema's names of alternatives."""
    path: list[str | int] = []
    for part in place:
        in_list = isinstance(document, list) and isinstance(part, int) and part < len(document)
        if in_list or (isinstance(document, dict) and part in document):
            document = document[part]
            path.append(part)
            continue
        if missing and part == place[-1]:
            path.append(part)
            break
    return tuple(path)


def _shown(path: tuple[str | int, ...]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _known_keys(path: tuple[str | int, ...]) -> list[str]:
    tables: dict[str, type[Table]] = {
        "clusters": ClusterTable,
        "projects": ProjectTable,
        "defaults": ResourceTypeTable,
        "types": ResourceTypeTable,
        "tiers": TierTable,
        "grace": GraceTable,
        "budgets": BudgetsTable,
    }
    table = tables.get(str(path[0]), SettingsFile) if len(path) > 1 else SettingsFile
    if "pod" in path[:-1]:
        table = VolumeTable if "volumes" in path else TolerationTable if "tolerations" in path else PodTable
    return list(table.model_fields)


def known_keys() -> list[str]:
    """Every key, for the reference: `defaults.zones`, `tiers.model`, ..."""
    return [
        *(name for name in SettingsFile.model_fields),
        *(f"clusters.{name}" for name in ClusterTable.model_fields),
        *(f"projects.{name}" for name in ProjectTable.model_fields),
        *(f"defaults.{name}" for name in ResourceTypeTable.model_fields),
        *(f"pod.{name}" for name in PodTable.model_fields),
        *(f"pod.volumes.{name}" for name in VolumeTable.model_fields),
        *(f"pod.tolerations.{name}" for name in TolerationTable.model_fields),
        *(f"tiers.{name}" for name in TierTable.model_fields),
        *(f"grace.{name}" for name in GraceTable.model_fields),
        *(f"budgets.{name}" for name in BudgetsTable.model_fields),
    ]


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _provisioning(file: SettingsFile) -> Provisioning:
    resource_types = {}
    for resource_type in instance_types.served_types():
        own = file.types.get(resource_type, ResourceTypeTable())
        zones = [
            zone
            for zone in own.zones or file.defaults.zones or ()
            if not why_not_in(zone, resource_type, _provider(file, zone))
        ]
        if not zones:
            continue
        given = {**file.defaults.model_dump(exclude_none=True), **own.model_dump(exclude_none=True)}
        pod = _pod(file.defaults.pod, own.pod)
        resource_types[resource_type] = ResourceTypeSettings(**{**given, "zones": tuple(zones), "pod": pod})
    tiers = tuple(
        Tier(
            model=CapacityModel(tier.model),
            reservations=tier.reservation if isinstance(tier.reservation, dict) else {"": tier.reservation},
            zones={resource_type: tuple(zones) for resource_type, zones in tier.zones.items()}
            if isinstance(tier.zones, dict)
            else {"": tuple(tier.zones)},
        )
        for tier in file.tiers
    )
    return Provisioning(
        without_slices=not file.tiers,
        project=file.project,
        endpoint=file.endpoint,
        token_file=file.token_file,
        clusters={name: _cluster(name, table) for name, table in file.clusters.items()},
        resource_types=resource_types,
        tiers=tiers or (Tier(),),
        budgets=Budgets(
            eviction_grace_seconds=file.grace.eviction_seconds,
            failure_grace_seconds=file.grace.failure_seconds,
            infrastructure_attempts=file.budgets.infrastructure_attempts,
            stuck_restarts=file.budgets.stuck_restarts,
            zone_wait_seconds=file.budgets.zone_wait_seconds,
            provision_seconds=file.budgets.provision_seconds,
            power_off_seconds=file.budgets.power_off_hours * 3600,
        ),
        warnings=tuple(_warnings(file, resource_types)),
        record_ticks=file.record_ticks,
        projects={name: ProjectAccounts(**table.model_dump()) for name, table in file.projects.items()},
        bastion_host_jobs=HostJobsMode(file.bastion_host_jobs) if file.bastion_host_jobs else None,
        host_job_user=_host_job_user(file.host_job_user),
    )


def _cluster(name: str, table: ClusterTable) -> ClusterSettings:
    return ClusterSettings(name=name, **{**table.model_dump(), "job_secrets": tuple(table.job_secrets)})


def _host_job_user(setting: bool | str) -> str:
    return setting if isinstance(setting, str) else HOST_JOB_USER if setting else ""


def _provider(file: SettingsFile, zone: str) -> Provider | None:
    cluster = file.clusters.get(cluster_of(zone))
    return cluster.provider if cluster is not None else None


def _pod(*tables: PodTable | None) -> PodSettings:
    """Return the settings of these tables; later ones win."""
    given: dict[str, Any] = {}
    for table in tables:
        if table is not None:
            given |= {name: value for name, value in table if value is not None}
    return PodSettings(
        **{
            **given,
            "tolerations": tuple(Toleration(**each.model_dump()) for each in given.get("tolerations", ())),
            "volumes": tuple(Volume(**each.model_dump()) for each in given.get("volumes", ())),
            "image_pull_secrets": tuple(given.get("image_pull_secrets", ())),
        }
    )


def _warnings(file: SettingsFile, resource_types: Mapping[str, ResourceTypeSettings]) -> Iterator[str]:
    """Values that contradict the table of instance types; the table may be outdated."""
    if file.endpoint:
        yield f"slices come from {file.endpoint}, not from the cloud"
        return
    offered: dict[str, set[str]] = {}
    for instance_type in instance_types.table().values():
        offered.setdefault(instance_type.resource_type, set()).update(instance_type.zones)
    anywhere = set().union(*offered.values())
    reported: set[str] = set()
    for resource_type, settings in resource_types.items():
        own = resource_type in file.types
        for zone in settings.zones:
            if cluster_of(zone):
                continue
            if own and zone not in offered[resource_type]:
                where = " ".join(sorted(offered[resource_type]))
                yield f"{resource_type} was not offered in {zone} when this version was made, but in {where}"
            elif zone not in anywhere | reported:
                reported.add(zone)
                yield f"no TPU was offered in {zone} when this version was made"
