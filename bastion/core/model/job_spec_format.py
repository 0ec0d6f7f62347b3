"""The JSON format of a spec (contract), as pydantic models: what each field may hold. Unknown fields are kept."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from bastion.core import limits
from bastion.core.encryption.key_mapping import KeyMapping
from bastion.core.errors import Refused
from bastion.core.model import inputs as job_inputs
from bastion.core.model import labels as job_labels
from bastion.core.model import secrets
from bastion.core.model.inputs import Input
from bastion.core.model.job_limits import LimitsFormat

# Terminals and logs show ids: no control characters.
_Id = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]
_Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
_Amount = Annotated[int, Field(ge=limits.RESOURCE_MIN, le=limits.RESOURCE_MAX)]
_Resources = Annotated[
    dict[Annotated[str, StringConstraints(min_length=1, max_length=63)], _Amount],
    Field(max_length=limits.RESOURCE_TYPES_MAX),
]
_Secrets = Annotated[
    dict[Annotated[str, AfterValidator(secrets.check_name)], Annotated[str, AfterValidator(secrets.check_source)]],
    Field(max_length=limits.SECRETS_MAX),
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


class _Format(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="allow", defer_build=True)


class _ScalingSpec(_Format):
    min_replicas: int = Field(ge=1, le=limits.NUM_REPLICAS_MAX)
    max_replicas: int = Field(ge=1, le=limits.NUM_REPLICAS_MAX)
    resources_per_replica: _Resources


class _Metadata(_Format):
    user_id: _Id
    project_id: _Id
    creation_time: str
    resources: _Resources = Field(default_factory=dict)
    priority: int | None = Field(default=None, ge=limits.PRIORITY_MIN, le=limits.PRIORITY_MAX)
    job_id: str | None = None
    version: int | None = Field(default=None, ge=0, le=2**53)
    scaling_specs: list[_ScalingSpec] | None = Field(default=None, max_length=16)
    labels: Annotated[dict[str, str], AfterValidator(job_labels.check)] | None = None


class InputFormat(_Format):
    url: Annotated[str, AfterValidator(job_inputs.check_url)]
    dir: Annotated[str, AfterValidator(job_inputs.check_folder)]


class RunnerFormat(_Format):
    kind: Literal["tpu", "gpu"]
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
    stuck_after_seconds: int | None = Field(
        default=None, ge=limits.STUCK_AFTER_MIN_SECONDS, le=limits.EXPECTED_DURATION_MAX_SECONDS
    )
    secrets: _Secrets | None = None
    inputs: Annotated[list[InputFormat], Field(max_length=limits.INPUTS_MAX)] | None = None
    output_to: Annotated[str, AfterValidator(job_inputs.check_url)] | None = None
    root: bool | None = None

    @model_validator(mode="after")
    def _check_folders(self) -> RunnerFormat:
        job_inputs.check_apart(
            [Input(url=each.url, folder=each.dir) for each in self.inputs or ()], self.output_dir or ""
        )
        if self.output_to and not self.output_dir:
            raise ValueError("output_to requires output_dir")
        return self


class SpecFormat(_Format):
    version: int = Field(ge=1, le=1)
    name: str
    command: Annotated[_Text, StringConstraints(min_length=1)]
    cleanup_command: _Text | None = None
    env_vars: dict[_EnvName, _Text] | None = Field(default=None, max_length=limits.SPEC_MAX_ENV_VARS)
    code_asset_path: str | None = None
    metadata: _Metadata
    runner: RunnerFormat | None = None
    limits: LimitsFormat | None = None
