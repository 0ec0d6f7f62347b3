"""An HTTP/1.1 server for programs that storage clients talk to: the storage endpoint, and whoever stands in their way.

Layer: beside `bastion.processes`; the standard library only. Lenient where real clients are odd, strict where leniency
would let two readers see two different requests. A thread per connection, because a handler reads bodies and files.
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
