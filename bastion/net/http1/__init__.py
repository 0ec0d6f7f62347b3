"""HTTP/1.1 for storage clients and proxies: a server, and a client (`client`).

It accepts the oddities of real clients, and refuses what two readers could read as different requests. Each connection
has a thread, because handlers read bodies and files.
"""

from bastion.net.http1.messages import (
    BadRequest,
    Body,
    BodyTruncated,
    BytesBody,
    Disconnect,
    FileSlice,
    Headers,
    Request,
    Response,
)
from bastion.net.http1.server import HttpServer
from bastion.net.http1.takeover import Channel, Raw, Secured, Takeover

__all__ = [
    "BadRequest",
    "Body",
    "BodyTruncated",
    "BytesBody",
    "Channel",
    "Disconnect",
    "FileSlice",
    "Headers",
    "HttpServer",
    "Raw",
    "Request",
    "Response",
    "Secured",
    "Takeover",
]
