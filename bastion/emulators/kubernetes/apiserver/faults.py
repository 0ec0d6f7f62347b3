"""Faults of the API, set at run time: an object that is asked before each request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to one request.

    Attributes:
        refuse: Answer with this code (401, 403, 429, 500, 503...) without carrying it out; 0: carry it out.
        message: What a refusal says; empty: that it was injected.
        retry_after: Seconds in the header Retry-After of a refusal.
        cut_reply: Carry it out, then reset the connection instead of answering.
        delay_seconds: Wait before carrying it out.
        too_old: Answer a list or a watch with 410.
    """

    refuse: int = 0
    message: str = ""
    retry_after: int = 1
    cut_reply: bool = False
    delay_seconds: float = 0.0
    too_old: bool = False


def forbidden(verb: str, resource: str, group: str = "") -> Fault:
    """What RBAC answers a user who lacks a verb (apiserver/pkg/endpoints/handlers/responsewriters/errors.go)."""
    message = (
        f'{resource}{"." + group if group else ""} is forbidden: User "system:serviceaccount:default:bastion" cannot '
        f'{verb} resource "{resource}" in API group "{group}" in the namespace "default"'
    )
    return Fault(refuse=403, retry_after=0, message=message)


def unauthorized() -> Fault:
    return Fault(refuse=401, retry_after=0, message="Unauthorized")


Plan = Callable[[str, str], Fault | None]


class ApiFaults:
    """Asked per request with method and path (with query); by default there are none."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._cuts = 0
        self._lock = threading.Lock()

    def plan(self, plan: Plan | None) -> None:
        """Set what is asked; None: no faults. It is called in the connections' threads."""
        self._plan = plan

    def of(self, method: str, path: str) -> Fault | None:
        plan = self._plan
        return None if plan is None else plan(method, path)

    def cut_watches(self) -> None:
        """End all open watches with a reset of their connections."""
        with self._lock:
            self._cuts += 1

    @property
    def cuts(self) -> int:
        """How often watches were cut; a watch that sees it change ends."""
        return self._cuts
