"""JobSpec version 1 (contract): read strictly, written so that clients of AXLearn's Bastion understand it.

A spec keeps its document unchanged, unknown fields included, because `jobs/complete/` holds that document plus
`result`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from bastion.core import documents, limits
from bastion.core.bucket import keys
from bastion.core.encryption.key_mapping import KeyMapping
from bastion.core.errors import InvalidSpec, Refused
from bastion.core.model import instance_types
from bastion.core.model import labels as job_labels
from bastion.core.packed_document import PackedDocument

_CREATION_TIME = "%Y-%m-%d %H:%M:%S.%f"
# Terminals and logs show ids: no control characters.
_Id = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]
_Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
_Amount = Annotated[int, Field(ge=limits.RESOURCE_MIN, le=limits.RESOURCE_MAX)]
_Resources = Annotated[
    dict[Annotated[str, StringConstraints(min_length=1, max_length=63)], _Amount],
    Field(max_length=limits.RESOURCE_TYPES_MAX),
]
_EnvName = Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\x00=]+$")]


def _check_output_dir(text: str) -> str:
    """Accept only folders below the working directory, because hosts may share a machine."""
    parts = text.split("/")
    if not parts[0] or ".." in parts or not set(parts) - {"", "."} or not text.isprintable():
        raise ValueError("must be a folder below the command's working directory, such as 'out'")
    return text


def _check_proxy(text: str) -> str:
    try:
        KeyMapping.parse(text, called="the mapping")
    except Refused as error:
        raise ValueError(str(error)) from error
    return text


def check_image(text: str) -> str:
    """Return the name of a container image. Raises ValueError if it cannot be one."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,511}", text):
        raise ValueError("must be a container image such as us-docker.pkg.dev/my-project/images/train:v1")
    return text


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="allow")


class _ScalingSpec(_Model):
    min_replicas: int = Field(ge=1, le=limits.NUM_REPLICAS_MAX)
    max_replicas: int = Field(ge=1, le=limits.NUM_REPLICAS_MAX)
    resources_per_replica: _Resources


class _Metadata(_Model):
    user_id: _Id
    project_id: _Id
    creation_time: str
    resources: _Resources = Field(default_factory=dict)
    priority: int | None = Field(default=None, ge=limits.PRIORITY_MIN, le=limits.PRIORITY_MAX)
    job_id: str | None = None
    version: int | None = Field(default=None, ge=0, le=2**53)
    scaling_specs: list[_ScalingSpec] | None = Field(default=None, max_length=16)
    labels: Annotated[dict[str, str], AfterValidator(job_labels.check)] | None = None


class _Runner(_Model):
    kind: Literal["tpu"]
    instance_type: str
    num_replicas: int = Field(default=1, ge=1, le=limits.NUM_REPLICAS_MAX)
    expected_duration_seconds: int | None = Field(default=None, ge=1, le=limits.EXPECTED_DURATION_MAX_SECONDS)
    max_tries: int | None = Field(default=None, ge=1, le=limits.TRIES_MAX)
    setup: _Text | None = None
    output_dir: Annotated[str, AfterValidator(_check_output_dir)] | None = None
    output_sync: Literal["each", "worker0"] | None = None
    max_wait_seconds: int | None = Field(default=None, ge=1, le=limits.EXPECTED_DURATION_MAX_SECONDS)
    proxy: Annotated[str, AfterValidator(_check_proxy)] | None = None
    image: Annotated[str, AfterValidator(check_image)] | None = None


class _Spec(_Model):
    version: int = Field(ge=1, le=1)
    name: str
    command: Annotated[_Text, StringConstraints(min_length=1)]
    cleanup_command: _Text | None = None
    env_vars: dict[_EnvName, _Text] | None = Field(default=None, max_length=limits.SPEC_MAX_ENV_VARS)
    code_asset_path: str | None = None
    metadata: _Metadata
    runner: _Runner | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """How a job with a slice runs: `num_replicas` slices of one type, all or none.

    Texts are unpacked on access, because most jobs wait.

    Attributes:
        setup: Command line to run once on each node before the command; None: the default one, empty: none.
        output_dir: Folder below the working directory whose content is stored; empty: none.
        proxy: What the encrypting storage proxy encrypts (`encryption.key_mapping`); empty: no proxy.
        image: Container image that the command runs in, on Kubernetes only; empty: the operator's, or none needed.
    """

    instance_type: instance_types.InstanceType
    num_replicas: int
    expected_duration_seconds: int | None = None  # the owner's estimate; only for other jobs' estimated starts
    max_tries: int = 1  # runs of the command before its failure counts as the job's
    # The stored content that a host begins with: "each" its own, "worker0" that of host 0.
    output_sync: Literal["each", "worker0"] = "each"
    max_wait_seconds: int | None = None  # total time that the job may wait for capacity; None: no limit
    has_image: bool = False
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
    packed: PackedDocument = field(repr=False)  # its JSON document, unknown fields included

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

    def to_bytes(self) -> bytes:
        return documents.dumps(self.document)

    def updates(self, accepted: JobSpec) -> bool:
        """Whether it is the next version of the same job; otherwise it is another job of that name."""
        return self.version is not None and self.version == (accepted.version or 0) + 1


def _explain(error: ValidationError) -> str:
    problems = []
    for item in error.errors(include_url=False, include_input=False)[:5]:
        where = ".".join(str(part) for part in item["loc"])
        problems.append(f"{where[:120]}: {item['msg'].removeprefix('Value error, ')[:200]}")
    more = error.error_count() - len(problems)
    return "; ".join(problems) + (f"; {more} more" if more > 0 else "")


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


def _runner(model: _Spec, resources: Mapping[str, int], packed: PackedDocument) -> Runner | None:
    if model.runner is None:
        return None
    instance_type = instance_types.lookup(model.runner.instance_type)
    # An undeclared replica would be capacity without a charge.
    required = _required_units(instance_type, model.runner.num_replicas)
    if dict(resources) != required:
        raise InvalidSpec(
            f"metadata.resources is {dict(resources)}, but {model.runner.num_replicas} x {instance_type.name} "
            f"needs {required}"
        )
    return Runner(
        instance_type=instance_type,
        num_replicas=model.runner.num_replicas,
        expected_duration_seconds=model.runner.expected_duration_seconds,
        max_tries=model.runner.max_tries or 1,
        output_sync=model.runner.output_sync or "each",
        max_wait_seconds=model.runner.max_wait_seconds,
        has_image=bool(model.runner.image),
        packed=packed,
    )


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
        model = _Spec.model_validate(document.unpack() if isinstance(document, PackedDocument) else document)
    except ValidationError as error:
        raise InvalidSpec(f"not a valid job spec (version 1): {_explain(error)}") from error
    if model.name != name:
        raise InvalidSpec(f"the spec's name is {model.name[:80]!r}, but its object is named {name!r}; make them equal")
    if not re.search(r"\S", model.command):
        raise InvalidSpec("command: must not be blank; write the bash command line to run")
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
        packed=packed,
    )


def overwriting(spec: JobSpec, accepted: JobSpec) -> JobSpec:
    """Read `spec` as the overwrite of an accepted spec. An update without `runner` or labels keeps the accepted ones.

    AXLearn's client omits both. Raises InvalidSpec if the resources of the update do not match the runner.
    """
    runner = accepted.runner if spec.runner is None else None
    if runner is None and not accepted.has_labels:
        return spec
    document = spec.document
    if runner is not None:
        document["runner"] = accepted.document["runner"]
    if document["metadata"].get("labels") is None and accepted.has_labels:
        document["metadata"]["labels"] = accepted.labels
    elif runner is None:
        return spec
    if not spec.updates(accepted) and document != accepted.document:
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

    To add an option of slice jobs, add a field of one name here and in `_Runner`.
    """

    instance_type: str = ""  # empty: the command runs on the bastion itself, and every option of `Runner` is ignored
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
    labels: Mapping[str, str] | None = None

    def runner(self) -> dict[str, Any]:
        """Return the spec's `runner`: the options that it shares with this class, without those that are None."""
        shared = [option.name for option in fields(self) if option.name in _Runner.model_fields]
        given = {name: getattr(self, name) for name in shared if getattr(self, name) is not None}
        return {"kind": "tpu", **given}


_NO_OPTIONS = JobOptions()


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
            "creation_time": datetime.fromtimestamp(now, timezone.utc).strftime(_CREATION_TIME),
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
        document["runner"] = options.runner() | {"instance_type": instance_type.name}
    if options.code_asset_path is not None:
        document["code_asset_path"] = options.code_asset_path
    return parse(documents.dumps(document), name=name, bastion=bastion)
