"""JSON objects in requests. Pure."""

from __future__ import annotations

import json
from typing import Any

from bastion.storage_wire.refusals import Refusal


def json_document(data: bytes) -> dict[str, Any]:
    """Parse a JSON object; {} for no bytes. Raises Refusal (400)."""
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
    """Return a text field of a resource; "" for null or absent."""
    value = document.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Refusal(400, "invalid", f"The value of {name} must be a string.")
    return value
