"""Pulling the images of a pod, with the kubelet's back-off (pkg/kubelet/images/image_manager.go).

All images are pulled before the first container starts; a kubelet pulls each when its container's turn comes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bastion.emulators.kubernetes.kubelet.images import InvalidReference, invalid_message, parse

_BACKOFF_MAX_SECONDS = 300.0

Waiting = dict[str, tuple[str, str]]


@dataclass(slots=True)
class Pulls:
    """The pulls of one pod; times from a monotonic clock, in seconds.

    After a failure the reason is ErrImagePull for one `backoff_seconds`, and then ImagePullBackOff until the next try.
    """

    backoff_seconds: float
    _failures: dict[str, int] = field(default_factory=dict, init=False)
    _failed_at: dict[str, float] = field(default_factory=dict, init=False)

    def waiting(self, pod: dict[str, Any], now: float, *, first_fails: bool = False) -> Waiting:
        """The container that waits for its image, with reason and message; empty if all are there."""
        spec = pod["spec"]
        for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
            reason = self._reason(container, now, first_fails=first_fails)
            if reason is not None:
                return {container["name"]: reason}
        return {}

    def _reason(self, container: dict[str, Any], now: float, *, first_fails: bool) -> tuple[str, str] | None:
        name = container["image"]
        try:
            error = parse(name).pull_error
        except InvalidReference as problem:
            return "InvalidImageName", invalid_message(name, problem)
        passing = first_fails and not error
        if passing:
            error = f'failed to pull image "{name}": dial tcp 192.0.2.1:443: i/o timeout'
        if not error:
            return None
        if container.get("imagePullPolicy") == "Never":
            return "ErrImageNeverPull", f'Container image "{name}" is not present with pull policy of Never'
        count = self._failures.get(name, 0)
        pause = min(self.backoff_seconds * 2 ** (count - 1), _BACKOFF_MAX_SECONDS) if count else 0.0
        since = now - self._failed_at.get(name, now)
        if not count or since >= self.backoff_seconds + pause:
            if count and passing:
                return None
            self._failures[name] = count + 1
            self._failed_at[name] = now
            return "ErrImagePull", error
        if since < self.backoff_seconds:
            return "ErrImagePull", error
        return "ImagePullBackOff", f'Back-off pulling image "{name}": ErrImagePull: {error}'
