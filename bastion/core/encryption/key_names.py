"""Names of wrapping keys, in the spelling of Cloud KMS, for every key service."""

from __future__ import annotations

import re

from bastion.core.errors import Refused

_NAME = re.compile(
    r"projects/[a-z0-9.:-]{1,100}/locations/[a-z0-9-]{1,63}"
    r"/keyRings/[A-Za-z0-9_-]{1,63}/cryptoKeys/[A-Za-z0-9_-]{1,63}"
)
_VERSION = re.compile(r"[1-9][0-9]{0,18}")
FORM = "projects/PROJECT/locations/LOCATION/keyRings/RING/cryptoKeys/KEY"


def is_key_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def is_version(version: str) -> bool:
    return _VERSION.fullmatch(version) is not None


def check_key_name(name: str) -> str:
    """Return the name; raises Refused if it is not the full name of a key."""
    if not is_key_name(name):
        raise Refused(f"{name[:300]!r} is not a valid key name; write {FORM}")
    return name


def version_name(key: str, version: str) -> str:
    return f"{key}/cryptoKeyVersions/{version}"
