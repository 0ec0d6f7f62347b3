"""Continue tokens: apiserver pkg/storage/continue.go. A token names the list's version and the next key."""

from __future__ import annotations

import base64
import json

from bastion.emulators.kubernetes.apiserver.statuses import bad_request

_VERSION = "meta.k8s.io/v1"


def token(version: int, next_key: str) -> str:
    """`version` -1: of an inconsistent list, which continues at the newest version."""
    document = {"v": _VERSION, "rv": version, "start": next_key}
    return base64.urlsafe_b64encode(json.dumps(document, separators=(",", ":")).encode()).decode().rstrip("=")


def read(text: str) -> tuple[int, str]:
    """The version and the key. Raises ApiFailure (400)."""
    try:
        document = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        version, start = document["rv"], document["start"]
        if document["v"] != _VERSION or not isinstance(version, int) or not isinstance(start, str) or not version:
            raise ValueError
    except (ValueError, KeyError, TypeError) as error:
        raise bad_request("continue key is not valid: the token is malformed; list again without it") from error
    return version, start
