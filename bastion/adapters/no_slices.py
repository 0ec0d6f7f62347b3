"""The provisioner of a daemon without slices: it refuses each request and says what to do instead."""

from __future__ import annotations

from collections.abc import Sequence

from bastion.core.errors import ProvisionerRefused
from bastion.ports import GangRef, GangRequest, GangStatus


class NoSlices:
    """`bastion.ports.Provisioner` without any gangs."""

    def create(self, request: GangRequest) -> None:
        raise ProvisionerRefused(
            f"this bastion provisions no slices (its daemon runs with --slices=none), so it cannot create "
            f"{request.accelerator_type}; launch without --instance_type to run on the bastion itself"
        )

    def failure(self, ref: GangRef) -> Exception | None:  # noqa: ARG002 - the port names it
        return None

    def get(self, ref: GangRef) -> GangStatus | None:  # noqa: ARG002 - the port names it
        return None

    def list(self, zone: str = "") -> Sequence[GangStatus]:  # noqa: ARG002 - the port names it
        return ()

    def delete(self, ref: GangRef) -> None:  # noqa: ARG002 - the port names it
        return
