"""JobSpec version 1 (contract): read strictly, written so that clients of AXLearn's Bastion understand it.

A spec keeps its document unchanged, unknown fields included, because `jobs/complete/` holds that document plus
`result`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from bastion.core import documents, limits
from bastion.core.bucket import keys
from bastion.core.errors import InvalidSpec
from bastion.core.model import inputs as job_inputs
from bastion.core.model import instance_types, job_limits, spec_problems
from bastion.core.model.inputs import Input
from bastion.core.model.job_limits import NO_LIMITS, AfterFormat, JobLimits, LimitsFormat
from bastion.core.model.job_spec_format import InputFormat, RunnerFormat, SpecFormat
from bastion.core.model.secrets import PodSecret, pod_secrets
from bastion.core.packed_document import PackedDocument

_CREATION_TIME = "%Y-%m-%d %H:%M:%S.%f"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """How a job with a slice runs: `num_replicas` slices of one type, all or none.

    Texts are unpacked on access, because most jobs wait.

    Attributes:
        setup: Command line to run once on each node before the command; None: the default one, empty: none.
        output_dir: Folder below the working directory whose content is stored; empty: none.
        proxy: What the encrypting storage proxy encrypts (`encryption.key_mapping`); empty: no proxy.
        image: Container image that the command runs in, on Kubernetes only; empty: the operator's, or none needed.
        secrets: Variables of the command, and where its hosts find their values (`secrets.FORMS`).
        inputs: What is fetched before the command starts.
        output_to: The bucket or folder of the stored output folder; empty: the bastion's bucket.
        root: Whether setup and command run as root, where commands have a user of their own.
    """

    instance_type: instance_types.InstanceType
    num_replicas: int
    expected_duration_seconds: int | None = None  # the owner's estimate; only for other jobs' estimated starts
    max_tries: int = 1  # runs of the command before its failure counts as the job's
    # The stored content that a host begins with: "each" its own, "worker0" that of host 0.
    output_sync: Literal["each", "worker0"] = "each"
    max_wait_seconds: int | None = None  # total time that the job may wait for capacity; None: no limit
    has_image: bool = False
    stuck_after_seconds: int | None = None  # without a sign of the command for so long it is restarted; None: never
    has_secrets: bool = False
    has_pod_secrets: bool = False
    root: bool = False
    packed: PackedDocument = field(repr=False)

    @property
    def hosts(self) -> int:
        return self.instance_type.hosts * self.num_replicas

    @property
    def setup(self) -> str | None:
        return self._text("setup")

    @property
    def output_dir(self) -> str:
        return self._text("output_dir") or ""

    @property
    def proxy(self) -> str:
        return self._text("proxy") or ""

    @property
    def image(self) -> str:
        return self._text("image") or "" if self.has_image else ""

    @property
    def secrets(self) -> dict[str, str]:
        return (self.packed.unpack()["runner"].get("secrets") or {}) if self.has_secrets else {}

    @property
    def pod_secrets(self) -> tuple[PodSecret, ...]:
        """Keys of Secrets that only pods have."""
        return pod_secrets(self.secrets.values()) if self.has_pod_secrets else ()

    @property
    def pod_secret_names(self) -> frozenset[str]:
        return frozenset(each.name for each in self.pod_secrets)

    @property
    def inputs(self) -> tuple[Input, ...]:
        found = self.packed.unpack()["runner"].get("inputs") or ()
        check_url, check_folder = job_inputs.check_url, job_inputs.check_folder
        return tuple(Input(url=check_url(each["url"]), folder=check_folder(each["dir"])) for each in found)

    @property
    def output_to(self) -> str:
        return job_inputs.check_url(text) if (text := self._text("output_to")) else ""

    def _text(self, name: str) -> str | None:
        text: str | None = self.packed.unpack()["runner"].get(name)
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A valid spec. Fields needed only at the start are unpacked on access.

    Attributes:
        creation_time: The client's text; for display only.
    """

    name: str
    user_id: str
    project_id: str
    # Units that the quota charges, by type; with scaling specs the sum of minimum x per replica.
    resources: Mapping[str, int]
    priority: int
    version: int | None  # `metadata.version`; one higher than the accepted one marks an update of the same job
    runner: Runner | None  # None: the command runs on the bastion itself
    has_cleanup: bool
    has_labels: bool = False
    limits: JobLimits = NO_LIMITS
    packed: PackedDocument = field(repr=False)  # its JSON document, unknown fields included

    @property
    def as_root(self) -> bool:
        """Whether its command asks to run as root on its hosts."""
        return self.runner is not None and self.runner.root

    @property
    def document(self) -> dict[str, Any]:
        return self.packed.unpack()

    @property
    def command(self) -> str:
        return str(self.document["command"])

    @property
    def cleanup_command(self) -> str | None:
        return self.document.get("cleanup_command") or None

    @property
    def env_vars(self) -> dict[str, str]:
        return self.document.get("env_vars") or {}

    @property
    def code_asset_path(self) -> str | None:
        return self.document.get("code_asset_path") or None

    @property
    def labels(self) -> dict[str, str]:
        """The user's own, for filters and for the objects that run the job."""
        return (self.document["metadata"].get("labels") or {}) if self.has_labels else {}

    @property
    def creation_time(self) -> str:
        return str(self.document["metadata"]["creation_time"])

    @property
    def hosts(self) -> int:
        return self.runner.hosts if self.runner else 1

    @property
    def instance_type(self) -> str:
        """Its name; empty without a slice."""
        return self.runner.instance_type.name if self.runner else ""

    def to_bytes(self) -> bytes:
        return documents.dumps(self.document)

    def updates(self, accepted: JobSpec) -> bool:
        """Whether it is the next version of the same job; otherwise it is another job of that name."""
        return self.version is not None and self.version == (accepted.version or 0) + 1


def _check_creation_time(text: str) -> None:
    # AXLearn writes str(datetime), which omits a zero fraction.
    try:
        datetime.strptime(text, _CREATION_TIME if "." in text else "%Y-%m-%d %H:%M:%S")
    except ValueError as error:
        problem = (
            f"metadata.creation_time: {text[:40]!r} is not a valid time; write it like 2026-01-02 03:04:05.000006 (UTC)"
        )
        raise InvalidSpec(problem) from error


def _required_units(instance_type: instance_types.InstanceType, num_replicas: int) -> dict[str, int]:
    return {instance_type.resource_type: instance_type.amount * num_replicas}


def _runner(model: SpecFormat, resources: Mapping[str, int], packed: PackedDocument) -> Runner | None:
    if model.runner is None:
        return None
    instance_type = instance_types.lookup(model.runner.instance_type)
    if model.runner.kind != instance_type.kind:
        raise InvalidSpec(
            f"runner.kind is {model.runner.kind!r}, but {instance_type.name} needs {instance_type.kind!r}; correct it"
        )
    # An undeclared replica would be capacity without a charge.
    required = _required_units(instance_type, model.runner.num_replicas)
    if dict(resources) != required:
        raise InvalidSpec(
            f"metadata.resources is {dict(resources)}, but {model.runner.num_replicas} x {instance_type.name} "
            f"needs {required}"
        )
    twice = sorted(set(model.runner.secrets or ()) & set(model.env_vars or ()))
    if twice:
        raise InvalidSpec(f"runner.secrets and env_vars both set {twice[0][:80]}; remove one of them")
    return Runner(
        instance_type=instance_type,
        num_replicas=model.runner.num_replicas,
        expected_duration_seconds=model.runner.expected_duration_seconds,
        max_tries=model.runner.max_tries or 1,
        output_sync=model.runner.output_sync or "each",
        max_wait_seconds=model.runner.max_wait_seconds,
        has_image=bool(model.runner.image),
        stuck_after_seconds=model.runner.stuck_after_seconds,
        has_secrets=bool(model.runner.secrets),
        has_pod_secrets=bool(pod_secrets((model.runner.secrets or {}).values())),
        root=bool(model.runner.root),
        packed=packed,
    )


def unknown_fields(document: Mapping[str, Any]) -> dict[str, list[str]]:
    """The fields of a valid document's `runner` and `limits` that mean nothing here, each with the known ones."""
    runner, found_limits = document.get("runner") or {}, document.get("limits") or {}
    places: list[tuple[str, Mapping[str, Any], type[BaseModel]]] = [
        ("runner", runner, RunnerFormat),
        ("limits", found_limits, LimitsFormat),
    ]
    places += [(f"runner.inputs.{number}", each, InputFormat) for number, each in enumerate(runner.get("inputs") or ())]
    places += [
        (f"limits.after.{number}", each, AfterFormat) for number, each in enumerate(found_limits.get("after") or ())
    ]
    return {
        f"{where}.{name}": list(model.model_fields)
        for where, found, model in places
        for name in found
        if name not in model.model_fields
    }


def from_document(document: Any, *, name: str, packed: PackedDocument | None = None) -> JobSpec:
    """Validate a parsed document.

    Args:
        document: A JSON document, parsed or packed.
        name: Its object's name.
        packed: The same document, packed; None: packed here.

    Raises:
        InvalidSpec: It breaks rules; the message lists up to five.
        UnknownInstanceType: The runner's type does not exist.
    """
    try:
        model = SpecFormat.model_validate(document.unpack() if isinstance(document, PackedDocument) else document)
    except ValidationError as error:
        raise InvalidSpec(f"not a valid job spec (version 1): {spec_problems.explain(error)}") from error
    if model.name != name:
        raise InvalidSpec(f"the spec's name is {model.name[:80]!r}, but its object is named {name!r}; make them equal")
    if not re.search(r"\S", model.command):
        raise InvalidSpec("command: must not be blank; write the bash command line to run")
    unused = model.limits.needs_cleanup() if model.limits and not model.cleanup_command else ""
    if unused:
        raise InvalidSpec(f"limits.{unused} requires cleanup_command; add one, or remove {unused}")
    _check_creation_time(model.metadata.creation_time)
    resources = dict(model.metadata.resources)
    if model.metadata.scaling_specs:
        resources = {}
        for scaling in model.metadata.scaling_specs:
            if scaling.max_replicas < scaling.min_replicas:
                raise InvalidSpec(
                    f"metadata.scaling_specs: max_replicas {scaling.max_replicas} must be at least min_replicas "
                    f"{scaling.min_replicas}"
                )
            for resource_type, amount in scaling.resources_per_replica.items():
                resources[resource_type] = resources.get(resource_type, 0) + scaling.min_replicas * amount
        if any(amount > limits.RESOURCE_MAX for amount in resources.values()):
            raise InvalidSpec(
                f"metadata.scaling_specs: the sum of one type must be at most {limits.RESOURCE_MAX} units"
            )
        if len(resources) > limits.RESOURCE_TYPES_MAX:
            raise InvalidSpec(
                f"metadata.scaling_specs: has {len(resources)} resource types; "
                f"the maximum is {limits.RESOURCE_TYPES_MAX}"
            )
    packed = packed or PackedDocument.of(document)
    return JobSpec(
        name=model.name,
        user_id=model.metadata.user_id,
        project_id=model.metadata.project_id,
        resources=resources,
        priority=model.metadata.priority or limits.PRIORITY_DEFAULT,
        version=model.metadata.version,
        runner=_runner(model, resources, packed),
        has_cleanup=bool(model.cleanup_command),
        has_labels=bool(model.metadata.labels),
        limits=job_limits.read(model.limits),
        packed=packed,
    )


def overwriting(spec: JobSpec, accepted: JobSpec) -> JobSpec:
    """Read `spec` as the overwrite of an accepted spec. An update without `runner`, `limits` or labels keeps them.

    AXLearn's client omits them. Raises InvalidSpec if the update does not match what is kept.
    """
    runner = accepted.runner if spec.runner is None else None
    if runner is None and not accepted.has_labels and accepted.limits == NO_LIMITS:
        return spec
    document, before = spec.document, accepted.document
    kept = [name for name in ("runner", "limits") if document.get(name) is None and before.get(name) is not None]
    document.update({name: before[name] for name in kept})
    if document["metadata"].get("labels") is None and accepted.has_labels:
        document["metadata"]["labels"] = accepted.labels
    elif not kept:
        return spec
    if not spec.updates(accepted) and document != before:
        return spec  # another job of that name
    required = _required_units(runner.instance_type, runner.num_replicas) if runner is not None else {}
    if runner is not None and dict(spec.resources) != required:
        raise InvalidSpec(
            f"the update has no runner, and the present one ({runner.num_replicas} x {runner.instance_type.name}) "
            f"needs metadata.resources {required}, not {dict(spec.resources)}; "
            "use these resources, add a matching runner, or cancel the job and submit it again"
        )
    return from_document(document, name=spec.name)


def parse(data: bytes, *, name: str, bastion: str) -> JobSpec:
    """Read the spec in the object `name` of bastion `bastion`.

    Raises InvalidSpec if it is too large, not JSON, or breaks a rule; UnknownInstanceType.
    """
    keys.check_job_name(name, bastion=bastion)
    if len(data) > limits.SPEC_MAX_BYTES:
        raise InvalidSpec(f"the spec is {len(data)} bytes long; the maximum is {limits.SPEC_MAX_BYTES}")
    try:
        document = documents.loads(data, max_bytes=limits.SPEC_MAX_BYTES, max_values=limits.SPEC_MAX_VALUES)
    except documents.DocumentError as error:
        raise InvalidSpec(str(error)) from error
    packed = PackedDocument(document, data) if isinstance(document, dict) else None
    return from_document(document, name=name, packed=packed)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The options of a new job beyond its command; None: the spec leaves the field out.

    To add an option of slice jobs, add a field of one name here and in `RunnerFormat`; of any job, in `LimitsFormat`.
    """

    # Empty: the command runs on the bastion itself, and every option of `Runner` is ignored.
    instance_type: str = ""
    num_replicas: int = 1
    priority: int = limits.PRIORITY_DEFAULT
    env_vars: Mapping[str, str] | None = None
    cleanup_command: str | None = None
    code_asset_path: str | None = None  # URL of the user's code, a tar file
    expected_duration_seconds: int | None = None
    max_tries: int | None = None
    setup: str | None = None
    output_dir: str | None = None
    output_sync: str | None = None
    max_wait_seconds: int | None = None
    proxy: str | None = None
    image: str | None = None
    stuck_after_seconds: int | None = None
    secrets: Mapping[str, str] | None = None  # variable -> where its hosts find the value (`secrets.FORMS`)
    inputs: Sequence[Mapping[str, str]] | None = None  # each with `url` and `dir`
    output_to: str | None = None
    root: bool | None = None
    labels: Mapping[str, str] | None = None
    max_run_seconds: int | None = None
    after: Sequence[Mapping[str, str]] | None = None  # each with `job`, `uid` and `on`
    after_at_most_seconds: int | None = None
    group: str | None = None
    cleanup_after_group_seconds: int | None = None
    cleanup_max_seconds: int | None = None
    cleanup_tries: int | None = None

    def runner(self) -> dict[str, Any]:
        """Return the spec's `runner`: the options that it shares with this class, without those that are None.

        Raises UnknownInstanceType.
        """
        instance_type = instance_types.lookup(self.instance_type)
        return {"kind": instance_type.kind, **self._given(RunnerFormat), "instance_type": instance_type.name}

    def limits(self) -> dict[str, Any]:
        """Return the spec's `limits` without those that are None; empty: the spec has none."""
        return self._given(LimitsFormat)

    def _given(self, format_: type[BaseModel]) -> dict[str, Any]:
        shared = [option.name for option in fields(self) if option.name in format_.model_fields]
        return {name: getattr(self, name) for name in shared if getattr(self, name) is not None}


_NO_OPTIONS = JobOptions()


def creation_time(now: float) -> str:
    """`metadata.creation_time` of a spec that is made at that time, in seconds since the epoch."""
    return datetime.fromtimestamp(now, timezone.utc).strftime(_CREATION_TIME)


def new(
    *,
    name: str,
    bastion: str,
    command: str,
    user_id: str,
    project_id: str,
    now: float,
    options: JobOptions = _NO_OPTIONS,
) -> JobSpec:
    """Make a new spec with every field that AXLearn's clients expect; raises like `parse`."""
    keys.check_job_name(name, bastion=bastion, new=True)
    document: dict[str, Any] = {
        "version": 1,
        "name": name,
        "command": command,
        "cleanup_command": options.cleanup_command,
        "env_vars": dict(options.env_vars) if options.env_vars else None,
        "metadata": {
            "user_id": user_id,
            "project_id": project_id,
            "creation_time": creation_time(now),
            "resources": {},
            "priority": options.priority,
            "job_id": None,
            "version": None,
            "scaling_specs": None,
        },
    }
    if options.labels:
        document["metadata"]["labels"] = dict(options.labels)
    if options.instance_type:
        instance_type = instance_types.lookup(options.instance_type)
        document["metadata"]["resources"] = _required_units(instance_type, options.num_replicas)
        document["runner"] = options.runner()
    if options.limits():
        document["limits"] = options.limits()
    if options.code_asset_path is not None:
        document["code_asset_path"] = options.code_asset_path
    return parse(documents.dumps(document), name=name, bastion=bastion)
