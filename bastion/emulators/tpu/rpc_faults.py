"""Faults of calls: refused for a while, throttled, or carried out with the answer lost.

A seeded fault depends on method, resource and the number of earlier calls.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Any

import grpc

from bastion.emulators.tpu.fault_plan import FaultPlan
from bastion.emulators.tpu.faults import Faults

_WRITES = ("Create", "Delete", "Reset")
_STATUS = {status.value[0]: status for status in grpc.StatusCode}
_UNAVAILABLE = (14, "The service is currently unavailable.")
_THROTTLED = (8, "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute'.")


class RpcFaults(grpc.ServerInterceptor):  # type: ignore[misc] # grpc has no types
    """Intercepts calls after the token guard."""

    def __init__(self, faults: Faults, plan: FaultPlan) -> None:
        self._faults = faults
        self._plan = plan
        self._calls: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        handler = continuation(details)
        if handler is None or handler.unary_unary is None:
            return handler
        method = details.method.rpartition("/")[2]

        def answer(request: Any, context: Any) -> Any:
            name = self._name(method, request)
            refusal, loses_reply = self._refusal(method, name), self._loses_reply(method, name)
            if refusal is not None:
                context.abort(_STATUS[refusal[0]], refusal[1])
            done = handler.unary_unary(request, context)
            if loses_reply:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the reply was lost; the call was carried out")
            return done

        return grpc.unary_unary_rpc_method_handler(answer, handler.request_deserializer, handler.response_serializer)

    def _name(self, method: str, request: Any) -> str:
        of_parent = [getattr(request, field, "") for field in ("parent", "queued_resource_id", "node_id")]
        name = f"{method} {getattr(request, 'name', '') or '/'.join(of_parent)}"
        with self._lock:
            self._calls[name] += 1
            return f"{name} {self._calls[name]}"

    def _refusal(self, method: str, name: str) -> tuple[int, str] | None:
        asked = self._faults.take(f"fail-call.{method}")
        if asked is not None:
            code, _, message = asked.partition(" ")
            known = code.isdigit() and int(code) in _STATUS and int(code) != 0
            return (int(code), message or "an injected fault") if known else _UNAVAILABLE
        if self._plan.strikes("unavailable", name):
            return _UNAVAILABLE
        return _THROTTLED if self._plan.strikes("throttled", name) else None

    def _loses_reply(self, method: str, name: str) -> bool:
        asked = self._faults.take(f"lose-reply.{method}") is not None
        return asked or (method.startswith(_WRITES) and self._plan.strikes("lost-reply", name))
