"""The tables of `config/daemon.toml`, with the form of each value; `bastion.core.model.daemon_settings` reads them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from bastion.core import limits
from bastion.core.model import secrets
from bastion.core.model.job_spec_format import check_image

_DAY = 86400.0
_Text = Annotated[str, StringConstraints(max_length=512)]
_Zone = Annotated[str, StringConstraints(pattern=r"^(k8s:)?[a-z]([a-z0-9-]{0,61}[a-z0-9])?$")]
_Zones = Annotated[list[_Zone], Field(min_length=1, max_length=32)]
_JobUser = (
    bool | Annotated[str, StringConstraints(pattern=r"^([a-z_][a-z0-9_-]{0,31}|[1-9][0-9]{0,9}:[1-9][0-9]{0,9})$")]
)
_Seconds = Annotated[float, Field(ge=0, le=7 * _DAY, allow_inf_nan=False)]
_ClusterName = Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$")]
_LabelKey = Annotated[
    str,
    StringConstraints(
        pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
    ),
]
_PodAccount = Annotated[str, StringConstraints(pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$")]
_LabelValue = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")]
_Quantity = Annotated[str, StringConstraints(pattern=r"^([0-9]+([.][0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?)?$")]
_Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
_SecretVariable = Annotated[str, AfterValidator(secrets.check_name)]
# A Secret of the namespace and one of its keys.
_SecretKey = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[-._a-zA-Z0-9]{1,253}$")]
_Image = Annotated[str, AfterValidator(lambda text: check_image(text) if text else text)]


def _check_path(text: str) -> str:
    parts = text.split("/")[1:]
    if ".." in parts or "." in parts or not text.strip("/"):
        raise ValueError("must be an absolute path below / without . and ..")
    # As in bastion/adapters/kubernetes/manifest.py. The API server refuses two mounts of one path.
    if text.rstrip("/") == "/dev/shm" or parts[0] == "bastion":
        raise ValueError("must not be /dev/shm, nor /bastion or below it, where pods have volumes of the bastion")
    return text


def _check_volumes(volumes: list[VolumeTable]) -> list[VolumeTable]:
    paths = [volume.path.rstrip("/") for volume in volumes]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise ValueError(f"must not name the path {twice} twice")
    return volumes


def _check_resource(name: str) -> str:
    if name in ("cpu", "memory"):
        raise ValueError(f"must be extended resources; use the key {name} instead")
    if name == "google.com/tpu":
        raise ValueError("must not have google.com/tpu, which follows from the instance type")
    return name


_Path = Annotated[str, StringConstraints(pattern=r"^/[^:,\x00]{1,1023}$"), AfterValidator(_check_path)]
_Resource = Annotated[_LabelKey, AfterValidator(_check_resource)]
_Provider = Annotated[
    str,
    StringConstraints(
        pattern=r"^(projects/[0-9]{1,20}/locations/global/workloadIdentityPools/[a-z0-9-]{4,32}/providers/[a-z0-9-]{4,32})?$"
    ),
]
# A LocalQueue's name, with the place of the project.
_Queue = Annotated[
    str,
    StringConstraints(
        pattern=r"^(([a-z0-9][a-z0-9-]{0,39})?[{]project[}]([a-z0-9-]{0,19}[a-z0-9])?|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?|)$"
    ),
]
_Count = Annotated[int, Field(ge=1, le=7 * int(_DAY))]


class Table(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", defer_build=True)


class TolerationTable(Table):
    key: _LabelKey
    operator: Literal["Exists", "Equal"] = "Exists"
    value: _LabelValue = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""

    @model_validator(mode="after")
    def _check(self) -> TolerationTable:
        if self.operator == "Exists" and self.value:
            raise ValueError('must have operator = "Equal", since it has a value')
        return self


class VolumeTable(Table):
    path: _Path
    claim: Literal[""] | _Name = ""
    bucket: _Text = ""
    secret: Literal[""] | _Name = ""
    host_path: Literal[""] | _Path = ""
    mount_options: _Text = ""
    read_only: bool = False

    @model_validator(mode="after")
    def _check(self) -> VolumeTable:
        if [bool(self.claim), bool(self.bucket), bool(self.secret), bool(self.host_path)].count(True) != 1:
            raise ValueError("must have one of claim, bucket, secret and host_path")
        return self


class PodTable(Table):
    image: _Image | None = None
    cpu: _Quantity | None = None
    memory: _Quantity | None = None
    cpu_limit: _Quantity | None = None
    memory_limit: _Quantity | None = None
    shm: _Quantity | None = None
    resources: dict[_Resource, _Quantity] | None = None
    node_selector: dict[_LabelKey, _LabelValue] | None = None
    tolerations: Annotated[list[TolerationTable], Field(max_length=32)] | None = None
    annotations: dict[_LabelKey, _Text] | None = None
    volumes: Annotated[list[VolumeTable], Field(max_length=32), AfterValidator(_check_volumes)] | None = None
    secrets: Annotated[dict[_SecretVariable, _SecretKey], Field(max_length=limits.SECRETS_MAX)] | None = None
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    image_pull_secrets: Annotated[list[_Name], Field(max_length=16)] | None = None
    host_network: bool | None = None
    gpu_network: bool | None = None
    run_as_user: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    grace_seconds: _Count | None = None
    spot_grace_seconds: _Count | None = None


class ProjectTable(Table):
    service_account: _Text = ""
    pod_service_account: _PodAccount = ""


class ClusterTable(Table):
    provider: Literal["gke", "eks", "generic"] = "generic"
    server: Annotated[str, StringConstraints(pattern=r"^(https?://[^/\s]+(/.*)?)?$")] = ""
    kubeconfig: _Text = ""
    context: _Text = ""
    token_file: _Text = ""
    ca_file: _Text = ""
    uid: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F-]{8,64}$")]
    namespace: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")] = "default"
    service_account: _PodAccount = ""
    agent_image: _Image = ""
    workload_identity_provider: _Provider = ""
    queue: _Queue = ""
    job_secrets: Annotated[list[_Name], Field(max_length=256)] = Field(default_factory=list)


class ResourceTypeTable(Table):
    zones: _Zones | None = None
    network: _Text | None = None
    subnetwork: _Text | None = None
    external_ips: bool | None = None
    service_account: _Text | None = None
    runtime_version: _Text | None = None
    input_cache: _Path | None = None
    input_cache_gib: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    pod: PodTable | None = None


class TierTable(Table):
    model: Literal["reserved", "on-demand", "spot", "flex-start"]
    reservation: _Text | dict[str, _Text] = ""
    zones: _Zones | dict[str, _Zones] = Field(default_factory=dict)


class GraceTable(Table):
    eviction_seconds: _Seconds = limits.EVICTION_GRACE_SECONDS
    failure_seconds: _Seconds = limits.FAILURE_GRACE_SECONDS


class BudgetsTable(Table):
    infrastructure_attempts: Annotated[int, Field(ge=1, le=1000)] = limits.INFRASTRUCTURE_ATTEMPTS_MAX
    stuck_restarts: Annotated[int, Field(ge=0, le=1000)] = limits.STUCK_RESTARTS_MAX
    zone_wait_seconds: Annotated[_Seconds, Field(gt=0)] = limits.ZONE_WAIT_SECONDS
    provision_seconds: Annotated[_Seconds, Field(gt=0)] = limits.PROVISION_TIMEOUT_SECONDS
    power_off_hours: Annotated[float, Field(ge=0, le=8784, allow_inf_nan=False)] = limits.POWER_OFF_SECONDS / 3600


class SettingsFile(Table):
    version: Literal[1] = 1
    project: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9.:-]{0,99}$")] = ""
    endpoint: Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9.-]+:[0-9]{1,5})?$")] = ""
    token_file: _Text = ""
    clusters: Annotated[dict[_ClusterName, ClusterTable], Field(max_length=32)] = Field(default_factory=dict)
    defaults: ResourceTypeTable = ResourceTypeTable()
    types: dict[str, ResourceTypeTable] = Field(default_factory=dict)
    projects: Annotated[dict[_Text, ProjectTable], Field(max_length=1000)] = Field(default_factory=dict)
    # Missing only in a file that says nothing about slices.
    tiers: Annotated[list[TierTable], Field(min_length=1, max_length=16)] = Field(default_factory=list)
    grace: GraceTable = GraceTable()
    budgets: BudgetsTable = BudgetsTable()
    host_job_user: _JobUser = True
    record_ticks: Annotated[int, Field(ge=0, le=limits.RECORDED_TICKS_MAX)] = 0
    bastion_host_jobs: Literal["own-user", "as-daemon", "off"] | None = None
