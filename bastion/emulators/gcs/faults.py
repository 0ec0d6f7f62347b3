"""Faults on demand: a wrapper of the endpoint's handler that breaks requests by rule and by seed.

`GET`, `PUT` and `DELETE` of `/_emulator/faults` show, replace and remove the rules; that path is never hit.

Invariants: the first rule that hits a request decides; later rules do not count it. Hits depend only on the seed, the
rule and its position, never on time or threads.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from bastion.core.errors import Refused
from bastion.emulators.gcs import json_api
from bastion.emulators.gcs.fault_rules import FaultRule, parse_json
from bastion.net.http1 import Body, Disconnect, FileSlice, Headers, Request, Response
from bastion.storage_wire import batch
from bastion.storage_wire.refusals import Refusal, as_json, as_xml

FAULTS_PATH = "/_emulator/faults"
_DOCUMENT_MAX_BYTES = 1024 * 1024
_PIECE_BYTES = 64 * 1024
# Pieces of a slow body per second.
_STEPS = 10

Handler = Callable[[Request], Response]

# Reason of the JSON API, code of the XML API.
_STATUSES = {
    "408": ("requestTimeout", "RequestTimeout"),
    "429": ("rateLimitExceeded", "SlowDown"),
    "500": ("internalError", "InternalError"),
    "503": ("backendError", "ServiceUnavailable"),
}


class _Armed:
    """A rule with its counters, guarded by its owner's lock."""

    def __init__(self, rule: FaultRule, *, seed: str) -> None:
        self.rule = rule
        self.matched = 0
        self.hit = 0
        self._path = re.compile(rule.path)
        self._random = random.Random(seed)

    def hits(self, request: Request) -> bool:
        rule = self.rule
        if rule.method and rule.method != request.method:
            return False
        if rule.path and not self._path.search(f"{request.path}?{request.query}" if request.query else request.path):
            return False
        self.matched += 1
        # Draw for every match, so that `nth` and `times` do not change later draws.
        drawn = self._random.random() * 100 < rule.percent
        first, last = rule.span
        if not drawn or not first <= self.matched <= last or (rule.times is not None and self.hit >= rule.times):
            return False
        self.hit += 1
        return True


class Faults:
    """The rules of one endpoint, in order of precedence; `seed` decides what `percent` hits.

    `wait` waits that many seconds; by default really, until `close`.
    """

    def __init__(
        self, rules: Iterable[FaultRule] = (), *, seed: int = 0, wait: Callable[[float], object] | None = None
    ) -> None:
        self._closed = threading.Event()
        self._wait = wait or self._closed.wait
        self._lock = threading.Lock()
        self._seed = seed
        self._armed: list[_Armed] = []
        self.replace(rules)

    def replace(self, rules: Iterable[FaultRule]) -> None:
        """Replace the rules; counters and draws restart."""
        armed = [_Armed(rule, seed=f"{self._seed}/{place}") for place, rule in enumerate(rules)]
        with self._lock:
            self._armed = armed

    def close(self) -> None:
        """End all waiting, now and later."""
        self._closed.set()

    def wrap(self, handler: Handler) -> Handler:
        def answer(request: Request) -> Response:
            if request.path == FAULTS_PATH:
                return self._administer(request)
            rule = self._choose(request) if self._armed else None
            return handler(request) if rule is None else self._break(rule, request, handler)

        return answer

    def _choose(self, request: Request) -> FaultRule | None:
        with self._lock:
            return next((armed.rule for armed in self._armed if armed.hits(request)), None)

    def _break(self, rule: FaultRule, request: Request, handler: Handler) -> Response:
        match rule.fault:
            case "408" | "429" | "500" | "503":
                return _refusal(rule.fault, request)
            case "reset":
                raise Disconnect(reset=True)
            case "lost-reply":
                handler(request).close()
                raise Disconnect
            case "stall":
                self._wait(rule.seconds)
                if rule.then == "drop":
                    raise Disconnect
                return handler(request)
            case "reset-body":
                response = handler(request)
                return _with_body(response, _cut(response, rule.after))
            case "slow":
                request = dataclasses.replace(request, body=_SlowBody(request.body, rule.rate, self._wait))
                response = handler(request)
                return _with_body(response, self._paced(_pieces(response.body, rule.rate // _STEPS), rule.rate))

    def _paced(self, pieces: Iterator[bytes], rate: int) -> Iterator[bytes]:
        for piece in pieces:
            self._wait(len(piece) / rate)
            yield piece

    def _administer(self, request: Request) -> Response:
        match request.method:
            case "GET":
                pass
            case "PUT" | "POST":
                try:
                    self.replace(parse_json(request.body.read(_DOCUMENT_MAX_BYTES)))
                except Refused as error:
                    return as_json(Refusal(400, "invalid", str(error)))
            case "DELETE":
                self.replace(())
            case _:
                return as_json(
                    Refusal(
                        405, "methodNotAllowed", "use GET to show the faults, PUT to replace and DELETE to remove them"
                    )
                )
        return Response(
            status=200,
            headers=Headers([("Content-Type", "application/json; charset=UTF-8")]),
            body=json.dumps({"rules": self._report()}).encode(),
        )

    def _report(self) -> Sequence[dict[str, object]]:
        with self._lock:
            return [
                {**armed.rule.model_dump(exclude_defaults=True), "matched": armed.matched, "hit": armed.hit}
                for armed in self._armed
            ]


class _SlowBody(Body):
    """A request's body that arrives slowly."""

    def __init__(self, body: Body, rate: int, wait: Callable[[float], object]) -> None:
        super().__init__(body.length)
        self._body = body
        self._rate = rate
        self._wait = wait

    @property
    def finished(self) -> bool:
        return self._body.finished

    def receive(self, max_bytes: int) -> bytes:
        piece = self._body.receive(min(max_bytes, max(1, self._rate // _STEPS)))
        self._wait(len(piece) / self._rate)
        return piece


class _Altered:
    """A response's body with other pieces; closes the original."""

    def __init__(self, original: Response, pieces: Iterator[bytes]) -> None:
        self._original = original
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def close(self) -> None:
        self._original.close()


def _with_body(response: Response, pieces: Iterator[bytes]) -> Response:
    """The same head and announced length with other pieces."""
    headers = Headers(response.headers.items())
    if response.length is not None:
        headers.set("Content-Length", str(response.length))
    return dataclasses.replace(response, headers=headers, body=_Altered(response, pieces))


def _cut(response: Response, after: int | None) -> Iterator[bytes]:
    """The first bytes of a response's body, then a reset."""
    left = (response.length or 0) // 2 if after is None else after
    for piece in _pieces(response.body, _PIECE_BYTES):
        if left <= 0:
            break
        yield piece[:left]
        left -= len(piece)
    raise Disconnect(reset=True)


def _pieces(body: bytes | Iterable[bytes] | FileSlice, size: int) -> Iterator[bytes]:
    """Any type of body in pieces of at most `size` bytes."""
    size = max(1, min(size, _PIECE_BYTES))
    if isinstance(body, FileSlice):
        for start in range(body.start, body.start + body.length, size):
            yield os.pread(body.descriptor, min(size, body.start + body.length - start), start)
        return
    for piece in [body] if isinstance(body, bytes) else body:
        for start in range(0, len(piece), size):
            yield piece[start : start + size]


def _refusal(fault: str, request: Request) -> Response:
    reason, code = _STATUSES[fault]
    refusal = Refusal(int(fault), reason, f"An injected fault: {fault}.", code=code)
    is_json = json_api.is_json_path(request.path) or request.path in batch.PATHS
    return as_json(refusal) if is_json else as_xml(refusal)
