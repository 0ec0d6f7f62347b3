"""The provisioner of a daemon that provisions no slices: it refuses each, with what to do instead."""

from __future__ import annotations

from collections.abc import Sequence

from bastion.core.errors import ProvisionerRefused
from bastion.ports import SliceRef, SliceRequest, SliceStatus


class NoSlices:
    """`bastion.ports.Provisioner` that has no gangs and never will."""

    def create(self, request: SliceRequest) -> None:
        raise ProvisionerRefused(
            f"this bastion provisions no slices (its daemon runs with --slices=none), so it cannot create "
            f"{request.accelerator_type}; launch without --instance_type to run on the bastion itself"
        )

    def failure(self, ref: SliceRef) -> Exception | None:  # noqa: ARG002 - the port names it
        return None

    def get(self, ref: SliceRef) -> SliceStatus | None:  # noqa: ARG002 - the port names it
        return None

    def list(self, zone: str = "") -> Sequence[SliceStatus]:  # noqa: ARG002 - the port names it
        return ()

    def delete(self, ref: SliceRef) -> None:  # noqa: ARG002 - the port names it
        return
