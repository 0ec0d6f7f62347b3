"""Faults of requests, by seed or by files in `DIR/faults/`; asked by the API server before each request.

* `refuse.<METHOD>.<anything>`: the next request with that method does nothing; the text is the code, by default 503.
* `lose-reply.<METHOD>.<anything>`: the next request with that method is carried out, and its connection is reset.

They hit controllers and kubelet, too, which are clients like any other.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from pathlib import Path

from bastion.emulators.fault_plan import FaultPlan
from bastion.emulators.kubernetes.apiserver.faults import Fault

_CHANGING = ("POST", "PUT", "PATCH", "DELETE")
_UNAVAILABLE, _THROTTLED = 503, 429


class RequestFaults:
    """A `bastion.emulators.kubernetes.apiserver.faults.Plan`; thread-safe."""

    def __init__(self, state_dir: Path, plan: FaultPlan) -> None:
        self._folder = state_dir / "faults"
        self._plan = plan
        self._requests: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()

    def __call__(self, method: str, path: str) -> Fault | None:
        if (text := self._take("refuse", method)) is not None:
            return Fault(refuse=int(text) if text.isdecimal() else _UNAVAILABLE)
        if self._take("lose-reply", method) is not None:
            return Fault(cut_reply=True)
        return self._by_seed(method, path) if self._plan.rates else None

    def _by_seed(self, method: str, path: str) -> Fault | None:
        request = f"{method} {path.partition('?')[0]}"
        with self._lock:
            self._requests[request] += 1
            name = f"{request} {self._requests[request]}"
        if self._plan.strikes("unavailable", name):
            return Fault(refuse=_UNAVAILABLE)
        if self._plan.strikes("throttled", name):
            return Fault(refuse=_THROTTLED)
        if method in _CHANGING and self._plan.strikes("lost-reply", name):
            return Fault(cut_reply=True)
        return None

    def _take(self, kind: str, method: str) -> str | None:
        """Consume one file of that kind, and return its text."""
        for path in sorted(self._folder.glob(f"{kind}.{method}*")):
            with contextlib.suppress(OSError):
                text = path.read_text("utf-8", "replace").strip()
                path.unlink()  # The reader that removes it has it.
                return text
        return None
