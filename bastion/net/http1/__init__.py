"""HTTP/1.1 for storage clients and proxies: a server, and a client (`client`).

Lenient where real clients are odd, strict where two readers could see two different requests. A thread per connection,
because handlers read bodies and files.
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
