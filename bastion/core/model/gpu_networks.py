"""The fast networks between machines with GPUs, as data: `gpu_networks.toml`."""

from __future__ import annotations

import functools
import importlib.resources

import tomli
from pydantic import BaseModel, ConfigDict, Field


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", defer_build=True)


class Sidecar(_Table):
    """A container that runs beside the host's, from before its start to after its end."""

    name: str
    image: str
    command: list[str]
    capabilities: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    mounts: dict[str, str] = Field(default_factory=dict)


class GpuNetwork(_Table):
    """What a pod needs to use it.

    Attributes:
        resources: Extended resources and huge pages, by name.
        host_paths: Volumes of folders of the node, by the volume's name.
        mounts: Where the host's container has volumes, by the volume's name.
    """

    annotations: dict[str, str] = Field(default_factory=dict)
    resources: dict[str, str] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    host_paths: dict[str, str] = Field(default_factory=dict)
    mounts: dict[str, str] = Field(default_factory=dict)
    sidecars: list[Sidecar] = Field(default_factory=list)


NO_NETWORK = GpuNetwork()


@functools.cache
def networks() -> dict[str, GpuNetwork]:
    """All by machine type; machines that are not here have no such network, or need nothing for it."""
    text = importlib.resources.files("bastion.core.model").joinpath("gpu_networks.toml").read_text("utf-8")
    return {machine: GpuNetwork.model_validate(table) for machine, table in tomli.loads(text).items()}
