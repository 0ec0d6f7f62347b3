"""Answers without what differs from run to run: identities, versions, times and ports; and without what tells a client
nothing: nulls, and the examples in messages about names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tests.kube.scenarios import Step

_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
# The numbers of versions in messages.
_VERSION = re.compile(r"((?:[Rr]esource ?[Vv]ersion[^\d\"]{0,30}|current: |too old resource version: |meta: )\(?)\d+")
# The advice behind what a valid name consists of.
_EXAMPLES = re.compile(r" \(e\.g\. '[^()]*regex used for validation is '[^']*'\)")
_BEHIND_OLD = re.compile(r"(<version> \()\d+")
# Who set which field, and the server's own address.
_DROPPED = frozenset({"managedFields", "serverAddressByClientCIDRs"})
_MASKED = {"uid": "<uid>", "resourceVersion": "<version>", "continue": "<continue>"}


def normal(step: Step, code: int, headers: Mapping[str, str], text: str) -> dict[str, Any]:
    """The answer as it is recorded and compared."""
    found: dict[str, Any] = {"code": code}
    kind = headers.get("content-type", "").partition(";")[0]
    if kind != "application/json":
        found["type"] = kind
    for name in ("warning", "retry-after"):
        if name in headers:
            found[name] = headers[name]
    if kind != "application/json":
        return {**found, "text": text}
    if _is_watch(step) and code == 200 and not text.startswith('{"kind"'):
        return {**found, "events": [_event(json.loads(line)) for line in text.splitlines()]}
    try:
        body = json.loads(text)
    except ValueError:
        return {**found, "text": text}
    if step.only:
        body = _reduced(body, step.only)
    body = _masked(body)
    if step.pick:
        return {**found, "picked": {pointer: at(body, pointer) for pointer in step.pick}}
    return {**found, "body": body}


def at(document: Any, pointer: str) -> Any:
    """The value at a JSON pointer; None if there is none."""
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(document, list):
            document = document[int(key)] if key.isdigit() and int(key) < len(document) else None
        elif isinstance(document, dict):
            document = document.get(key)
        else:
            return None
    return document


def _is_watch(step: Step) -> bool:
    return step.query.get("watch") in ("true", "1") or "/watch/" in step.path


def _event(event: dict[str, Any]) -> dict[str, Any]:
    found = event["object"]
    if event["type"] == "BOOKMARK":
        # Typed servers send an empty object of the kind, with its empty lists; clients read the metadata only.
        found = {key: found.get(key) for key in ("apiVersion", "kind", "metadata")}
    return {"type": event["type"], "object": _masked(found)}


def _reduced(body: Any, only: Mapping[str, Any]) -> Any:
    items = {item[only["key"]]: item for item in body[only["list"]]}
    return {**body, only["list"]: [items.get(value) for value in only["values"]]}


def _masked(value: Any) -> Any:
    if isinstance(value, list):
        return [_masked(item) for item in value]
    if isinstance(value, str):
        return _text(value)
    if not isinstance(value, dict):
        return value
    found = {}
    for key, item in value.items():
        # To a client null is nothing, and so are no details.
        if key in _DROPPED or item is None or (key == "details" and not item):
            continue
        found[key] = _MASKED[key] if key in _MASKED and isinstance(item, str) and item else _masked(item)
    prefix, name = found.get("generateName"), found.get("name")
    if prefix and isinstance(name, str) and name.startswith(prefix) and len(name) == len(prefix) + 5:
        found["name"] = f"{prefix}<suffix>"
    return found


def _text(value: str) -> str:
    value = _TIME.sub("<time>", _UID.sub("<uid>", _EXAMPLES.sub("", value)))
    return _BEHIND_OLD.sub(r"\1<version>", _VERSION.sub(r"\1<version>", value))
