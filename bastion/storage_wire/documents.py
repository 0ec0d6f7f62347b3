"""JSON objects in requests.

Layer: storage_api. Pure.
"""

from __future__ import annotations

import json
from typing import Any

from bastion.storage_wire.refusals import Refusal


def json_document(data: bytes) -> dict[str, Any]:
    """A JSON object from a request; no bytes are an empty one.

    Raises:
        Refusal: 400, it is something else.
    """
    if not data.strip():
        return {}
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "parseError", "Parse Error: the body is not JSON.") from error
    if not isinstance(document, dict):
        raise Refusal(400, "parseError", "Parse Error: the body is not a JSON object.")
    return document


def text_field(document: dict[str, Any], name: str) -> str:
    """A text of a resource; null and absent are empty."""
    value = document.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Refusal(400, "invalid", f"The value of {name} must be a string.")
    return value
