"""A provisioner whose service may move or restart: located before each call, reconnected when it moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from bastion.core.errors import ProvisionerUnavailable
from bastion.ports import GangRef, GangRequest, GangStatus, Provisioner

A = TypeVar("A")


class ReconnectingProvisioner(Generic[A]):
    """Behind the `Provisioner` port.

    Args:
        locate: Returns the service's address; None while it is absent.
        connect: Makes a provisioner for an address.
        absent: The error message while it is absent.
    """

    def __init__(self, *, locate: Callable[[], A | None], connect: Callable[[A], Provisioner], absent: str) -> None:
        self._locate = locate
        self._connect = connect
        self._absent = absent
        self._address: A | None = None
        self._provisioner: Provisioner | None = None

    def _current(self) -> Provisioner:
        address = self._locate()
        if address is None:
            raise ProvisionerUnavailable(self._absent)
        if self._provisioner is None or address != self._address:
            self._provisioner, self._address = self._connect(address), address
        return self._provisioner

    def create(self, request: GangRequest) -> None:
        self._current().create(request)

    def failure(self, ref: GangRef) -> Exception | None:
        return self._current().failure(ref)

    def get(self, ref: GangRef) -> GangStatus | None:
        return self._current().get(ref)

    def list(self, zone: str = "") -> Sequence[GangStatus]:
        return self._current().list(zone)

    def delete(self, ref: GangRef) -> None:
        self._current().delete(ref)
