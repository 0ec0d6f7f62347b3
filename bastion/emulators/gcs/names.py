"""Valid names of buckets and objects in Cloud Storage. Pure."""

from __future__ import annotations

import re

from bastion.core.bucket.objects import check_key
from bastion.emulators.gcs.resources import InvalidRequest

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
_COMPONENT_MAX = 63


def is_bucket_name(name: str) -> bool:
    """Whether a bucket name is valid; the service also refuses some names that resemble its own."""
    return (
        bool(_BUCKET.fullmatch(name))
        and not _ADDRESS.fullmatch(name)
        and all(1 <= len(part) <= _COMPONENT_MAX for part in name.split("."))
        and not name.startswith("goog")
        and "google" not in name
    )


def check_bucket_name(name: str) -> None:
    """Raise InvalidRequest if the bucket name is not valid."""
    if not is_bucket_name(name):
        raise InvalidRequest(
            f"Invalid bucket name: {name[:80]!r}; use 3 to 63 lowercase letters, digits, '-', '_' and '.', "
            "with a letter or digit at both ends."
        )


def check_object_name(name: str) -> None:
    """Raise InvalidRequest if the object name is not valid."""
    try:
        check_key(name)
    except ValueError as error:
        raise InvalidRequest(f"Invalid object name: {error}") from error
