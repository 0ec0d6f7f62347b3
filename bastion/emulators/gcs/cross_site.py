"""Keep web pages away from the storage endpoint, which serves its user's browsers too. See `bastion.net.cross_site`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from bastion.emulators.gcs.api import is_json, scheme_of
from bastion.net import cross_site
from bastion.net.http1 import Request, Response
from bastion.storage_wire.refusals import Refusal, as_json, as_xml

_log = logging.getLogger(__name__)

# Names of the real service, which clients use over TLS, through a proxy, or by /etc/hosts. Google owns them, so no
# foreign page has one.
SERVICE_HOSTS = ("*.googleapis.com",)

Handler = Callable[[Request], Response]


def without_web_pages(answer: Handler, hosts: Collection[str]) -> Handler:
    """Wrap a handler: refuse requests of web pages, and for unknown host names, with 403; `hosts` are known."""
    known = frozenset((*SERVICE_HOSTS, *(host.lower().rstrip(".") for host in hosts)))

    def guarded(request: Request) -> Response:
        scheme = scheme_of(request)
        why = cross_site.refusal(request.headers.get_all, authority=request.authority, scheme=scheme, hosts=known)
        if not why:
            return _harmless(answer(request)) if "Sec-Fetch-Site" in request.headers else answer(request)
        _log.warning("refused %s %s: %s", request.method, request.path, why)
        message = f"Refused: {why}. To allow another host name, use --allowed_host."
        return (as_json if is_json(request) else as_xml)(Refusal(403, "forbidden", message, code="AccessDenied"))

    return guarded


def _harmless(response: Response) -> Response:
    """Add headers so that a page stored in a bucket cannot act as a page of this endpoint."""
    response.headers.set("Content-Security-Policy", "sandbox")
    response.headers.set("X-Content-Type-Options", "nosniff")
    return response
