"""An object's name and custom metadata out of what a tool printed of it.

Layer: proxy, pure. Understood are the object resource of the JSON API (what `gcloud storage objects describe --raw`,
client libraries and the API itself give) and gcloud's own form of it; a list with one of them will do.
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
    """What is needed to open an object's envelope.

    Attributes:
        bucket: Empty: not told.
        name: Empty: not told.
        metadata: The custom metadata.
    """

    bucket: str
    name: str
    metadata: Mapping[str, str] = field(repr=False)


def read_description(data: bytes, *, called: str) -> Description:
    """What a tool printed, as JSON.

    Args:
        called: Where it comes from, for messages.

    Raises:
        Refused: it is no description of one object.
    """
    try:
        document: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refused(
            f"{called} is not JSON; write it with: gcloud storage objects describe --raw --format=json gs://BUCKET/NAME"
        ) from error
    if isinstance(document, list) and len(document) == 1:
        document = document[0]
    if not isinstance(document, dict):
        raise Refused(f"{called} does not describe one object; describe the one that FILE is")
    metadata = document.get("metadata", document.get("custom_fields", {}))
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise Refused(f"{called} has custom metadata that is no table of texts; describe the object anew, with --raw")
    bucket, name = document.get("bucket", ""), document.get("name", "")
    return Description(
        bucket=bucket if isinstance(bucket, str) else "",
        name=name if isinstance(name, str) else "",
        metadata=metadata,
    )


def parse_url(url: str) -> tuple[str, str]:
    """Bucket and name of `gs://BUCKET/NAME`.

    Raises:
        Refused: it is none.
    """
    found = _URL.fullmatch(url)
    if found is None:
        raise Refused(f"{url[:300]!r} is not the place of an object; write gs://BUCKET/NAME")
    return found[1], found[2]
