"""Recognize HTTP requests that a browser sends for a web page.

A browser runs as the user, so the owner of the socket does not identify the page. A server on loopback that acts for
its user refuses:

* a request with an `Origin` other than the server: browsers send it with all requests of a page except plain GET and
  HEAD;
* a request with `Sec-Fetch-Site: cross-site` or `same-site`, which browsers also send with GET;
* a request for an unknown host name: a page whose name resolves to 127.0.0.1 (DNS rebinding) has the server's origin.

Ports are not compared: a page cannot choose a loopback name's port, and forwarded ports (`ssh -L`, containers) are
common.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Sequence

_AUTHORITY = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[0-9A-Za-z_.-]+))(?::(?P<port>[0-9]{1,5}))?")
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_FROM_ELSEWHERE = ("cross-site", "same-site")


def refusal(
    header: Callable[[str], Sequence[str]], *, authority: str = "", scheme: str = "http", hosts: Collection[str] = ()
) -> str:
    """Return why a request must be refused; empty if it may be answered.

    Args:
        header: Returns all values of a header field, ignoring case.
        authority: Host and port of an absolute request target; checked like `Host`.
        scheme: Of the server, as the client sees it.
        hosts: Further names of this server in lower case; `*.NAME` means all names below NAME.
    """
    named = [*header("Host"), *([authority] if authority else [])]
    for one in named:
        if not is_known(one, hosts):
            return f"the host {one!r} is not a name of this server"
    own = {_origin(scheme, one) for one in named}
    for origin in header("Origin"):
        from_scheme, _, from_authority = origin.strip().partition("://")
        if _origin(from_scheme, from_authority) not in own:
            return f"a web page from {origin!r} sent it"
    for site in header("Sec-Fetch-Site"):
        if site.strip().lower() in _FROM_ELSEWHERE:
            return "a web page from another site sent it"
    return ""


def is_known(authority: str, hosts: Collection[str] = ()) -> bool:
    """Return whether a host, with or without port, is loopback or one of `hosts`."""
    found = _AUTHORITY.fullmatch(authority.strip())
    if found is None:
        return False
    host = (found["address"] or found["name"]).lower().rstrip(".")
    if host == "localhost" or host in hosts:
        return True
    if any(known.startswith("*.") and host.endswith(known[1:]) for known in hosts):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _origin(scheme: str, authority: str) -> str:
    """Scheme, host and port in one normal form."""
    scheme, authority = scheme.lower(), authority.strip().lower()
    return f"{scheme}://{authority.removesuffix(':' + _DEFAULT_PORTS.get(scheme, ''))}"
