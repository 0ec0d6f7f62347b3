"""The server: a listener, a thread per connection, an orderly end. (Skeleton; the rest follows in minutes.)"""

from __future__ import annotations

import ssl
from collections.abc import Callable

from bastion.http1.messages import Request, Response

Handler = Callable[[Request], Response]


class HttpServer:
    def __init__(
        self,
        handler: Handler,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        idle_seconds: float = 300.0,
        head_max_bytes: int = 64 * 1024,
        connections_max: int = 1024,
    ) -> None:
        raise NotImplementedError

    def open(self) -> None:
        raise NotImplementedError

    @property
    def port(self) -> int:
        raise NotImplementedError

    def close(self, grace_seconds: float = 5.0) -> None:
        raise NotImplementedError
