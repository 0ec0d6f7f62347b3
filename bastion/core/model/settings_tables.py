"""The tables of `config/daemon.toml`, with the form of each value; `bastion.core.model.daemon_settings` reads them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from bastion.core import limits

_DAY = 86400.0
_Text = Annotated[str, StringConstraints(max_length=512)]
_Zone = Annotated[str, StringConstraints(pattern=r"^(k8s:)?[a-z]([a-z0-9-]{0,61}[a-z0-9])?$")]
_Zones = Annotated[list[_Zone], Field(min_length=1, max_length=32)]
_Seconds = Annotated[float, Field(ge=0, le=7 * _DAY, allow_inf_nan=False)]
_ClusterName = Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$")]
_LabelKey = Annotated[
    str,
    StringConstraints(
        pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
    ),
]
_LabelValue = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")]
_Quantity = Annotated[str, StringConstraints(pattern=r"^([0-9]+([.][0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?)?$")]
_Path = Annotated[str, StringConstraints(pattern=r"^/[^:,\x00]{1,1023}$")]
_Provider = Annotated[
    str,
    StringConstraints(
        pattern=r"^(projects/[0-9]{1,20}/locations/global/workloadIdentityPools/[a-z0-9-]{4,32}/providers/[a-z0-9-]{4,32})?$"
    ),
]
_Count = Annotated[int, Field(ge=1, le=7 * int(_DAY))]


class Table(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class TolerationTable(Table):
    key: _LabelKey
    operator: Literal["Exists", "Equal"] = "Exists"
    value: _LabelValue = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""


class VolumeTable(Table):
    path: _Path
    claim: _Text = ""
    bucket: _Text = ""
    mount_options: _Text = ""
    read_only: bool = False


class PodTable(Table):
    image: _Text | None = None
    cpu: _Quantity | None = None
    memory: _Quantity | None = None
    shm: _Quantity | None = None
    resources: dict[_LabelKey, _Quantity] | None = None
    node_selector: dict[_LabelKey, _LabelValue] | None = None
    tolerations: Annotated[list[TolerationTable], Field(max_length=32)] | None = None
    annotations: dict[_LabelKey, _Text] | None = None
    volumes: Annotated[list[VolumeTable], Field(max_length=32)] | None = None
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    image_pull_secrets: Annotated[list[_Text], Field(max_length=16)] | None = None
    host_network: bool | None = None
    run_as_user: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    grace_seconds: _Count | None = None
    spot_grace_seconds: _Count | None = None


class ClusterTable(Table):
    provider: Literal["gke", "eks", "generic"] = "generic"
    server: Annotated[str, StringConstraints(pattern=r"^(https?://[^/\s]+(/.*)?)?$")] = ""
    kubeconfig: _Text = ""
    context: _Text = ""
    token_file: _Text = ""
    ca_file: _Text = ""
    uid: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F-]{8,64}$")]
    namespace: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")] = "default"
    service_account: Annotated[str, StringConstraints(pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$")] = ""
    agent_image: _Text = ""
    workload_identity_provider: _Provider = ""


class ResourceTypeTable(Table):
    zones: _Zones | None = None
    network: _Text | None = None
    subnetwork: _Text | None = None
    external_ips: bool | None = None
    service_account: _Text | None = None
    runtime_version: _Text | None = None
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
    tiers: Annotated[list[TierTable], Field(min_length=1, max_length=16)]
    grace: GraceTable = GraceTable()
    budgets: BudgetsTable = BudgetsTable()
    record_ticks: Annotated[int, Field(ge=0, le=limits.RECORDED_TICKS_MAX)] = 0
