"""Read an object's name and custom metadata from a tool's output. Pure.

Accepts the JSON API's resource (`gcloud storage objects describe --raw`), gcloud's own format, and a list of one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bastion.core.errors import Refused

_URL = re.compile(r"gs://([^/]+)/(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What opens an object's envelope. Bucket and name are empty if unknown."""

    bucket: str
    name: str
    metadata: Mapping[str, str] = field(repr=False)


def read_description(data: bytes, *, called: str) -> Description:
    """Parse JSON from the source `called`. Raises Refused if it does not describe exactly one object."""
    try:
        document: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refused(
            f"{called} is not JSON; write it with: gcloud storage objects describe --raw --format=json gs://BUCKET/NAME"
        ) from error
    if isinstance(document, list) and len(document) == 1:
        document = document[0]
    if not isinstance(document, dict):
        raise Refused(f"{called} does not describe exactly one object; describe the object in FILE")
    metadata = document.get("metadata", document.get("custom_fields", {}))
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise Refused(f"{called} has invalid custom metadata; describe the object again with --raw")
    bucket, name = document.get("bucket", ""), document.get("name", "")
    return Description(
        bucket=bucket if isinstance(bucket, str) else "",
        name=name if isinstance(name, str) else "",
        metadata=metadata,
    )


def parse_url(url: str) -> tuple[str, str]:
    """Parse `gs://BUCKET/NAME`. Raises Refused."""
    found = _URL.fullmatch(url)
    if found is None:
        raise Refused(f"{url[:300]!r} is not the URL of an object; use gs://BUCKET/NAME")
    return found[1], found[2]
