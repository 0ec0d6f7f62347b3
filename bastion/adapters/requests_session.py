"""What all HTTP sessions with Google's services share."""

from __future__ import annotations

import os

import requests
import requests.utils


def read_environment(session: requests.Session, url: str) -> None:
    """Read the environment's proxies and authorities for a URL once; the library would do so for each request.

    That would take a fifth of the time of a small write. The library would also use a password in ~/.netrc instead of
    the access token.
    """
    session.proxies.update(requests.utils.get_environ_proxies(url))
    session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True
    session.trust_env = False
