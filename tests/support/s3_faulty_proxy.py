"""A way to an S3 server on which requests fail: forwards them as they are, signatures included."""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from urllib.parse import urlsplit

from bastion.emulators.gcs.fault_rules import FaultRule
from bastion.emulators.gcs.faults import Faults
from bastion.net.http1 import Disconnect, Headers, HttpServer, Request, Response

# Every twentieth request fails, in each way that a request can.
S3_FAULTS = (
    FaultRule(fault="lost-reply", percent=1.5),
    FaultRule(fault="503", percent=1),
    FaultRule(fault="500", percent=0.5),
    FaultRule(fault="reset", percent=1),
    FaultRule(fault="reset-body", percent=0.5),
    FaultRule(fault="stall", percent=0.2, seconds=2),
    FaultRule(fault="stall", percent=0.2, seconds=2, then="drop"),
)
_HOP_BY_HOP = frozenset({"connection", "expect", "keep-alive", "transfer-encoding"})


class S3FaultyProxy:
    """`upstream` is the URL of the server."""

    def __init__(self, upstream: str, *, rules: Sequence[FaultRule] = S3_FAULTS, seed: int = 0) -> None:
        place = urlsplit(upstream)
        self._host, self._port = place.hostname or "", place.port
        self.requests = 0
        self._faults = Faults(rules, seed=seed)
        self._server = HttpServer(self._faults.wrap(self._forward))

    def open(self) -> None:
        self._server.open()

    def close(self) -> None:
        self._faults.close()
        self._server.close(grace_seconds=1)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    def _forward(self, request: Request) -> Response:
        self.requests += 1
        body = request.body.read()
        connection = http.client.HTTPConnection(self._host, self._port, timeout=60)
        try:
            connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    connection.putheader(name, value)
            if request.method in ("PUT", "POST") and "Content-Length" not in request.headers:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body or None)
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException):
            raise Disconnect from None
        finally:
            connection.close()
        kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP]
        return Response(status=answer.status, headers=Headers(kept), body=data)
