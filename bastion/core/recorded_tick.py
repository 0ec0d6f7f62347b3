"""Recorded ticks: one tick's input and what was decided on it, as one JSON document.

`bastion debug replay` decides it again; `bastion debug diff` shows what another version decides otherwise. Environment
values, run tokens and the secret of the runs are removed; no decision depends on them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bastion import __version__
from bastion.core import typed_json
from bastion.core.errors import InvalidDocument
from bastion.core.reconcile.effects import (
    AppendHistory,
    CloseGate,
    CreateGang,
    DeleteGang,
    DropRecord,
    Effect,
    PutComplete,
    PutOrder,
    PutRecord,
)
from bastion.core.run_keys import SECRET_BYTES, RunKeys
from bastion.core.tick import TickInput, TickOutput
from quota import load as load_quota
from scheduler import Decision

_FORMAT = 1
_REMOVED = "removed"
_KEYS_OF_REPLAYS = RunKeys(bytes(SECRET_BYTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTick:
    """A tick as it was recorded."""

    version: str  # of the program that recorded it
    given: TickInput
    decided: tuple[str, ...]  # `describe` of what that version decided


def to_bytes(given: TickInput, output: TickOutput, *, quota_file: bytes) -> bytes:
    """Make the document. `quota_file` is the one in force; empty if there is none."""
    settings = replace(given.world.settings, run_keys=None)
    world = replace(given.world, policy=None, entropy=b"", settings=settings)
    without = replace(given, world=world, snapshot=replace(given.snapshot, policy=None))
    document = {
        "format": _FORMAT,
        "version": __version__,
        "quota_file": quota_file.decode("utf-8", "replace"),
        "input": _without_secrets(typed_json.encode(without)),
        "decided": describe(output),
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def read(data: bytes) -> RecordedTick:
    """Read a document; raises InvalidDocument if it is not a recorded tick that this version can read."""
    try:
        document = json.loads(data)
        if document["format"] != _FORMAT:
            raise InvalidDocument(f"the recorded tick has format {document['format']!r}; this version reads {_FORMAT}")
        given: TickInput = typed_json.decode(TickInput, document["input"])
        policy = load_quota(document["quota_file"].encode()) if document["quota_file"] else None
        settings = replace(given.world.settings, run_keys=_KEYS_OF_REPLAYS)
        world = replace(given.world, policy=policy, settings=settings)
        given = replace(given, world=world, snapshot=replace(given.snapshot, policy=policy))
        return RecordedTick(version=str(document["version"]), given=given, decided=tuple(map(str, document["decided"])))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidDocument(f"this is not a recorded tick: {type(error).__name__}: {error}") from error


def describe(output: TickOutput) -> list[str]:
    """Return every decision and every effect as a line of text, sorted by job."""
    lines = [_decision(decision) for decision in output.plan.decisions]
    lines += [f"{name}: {text}" for name, effects in output.effects.items() for text in _effects(effects)]
    return sorted(lines, key=lambda line: line.partition(":")[0])


def _decision(decision: Decision) -> str:
    text = f"{decision.name}: {decision.verdict.value}"
    if decision.tier is not None:
        text += f" on tier {decision.tier}"
    if decision.evicted_for:
        text += f" for {decision.evicted_for}"
    if decision.reason is not None:
        text += f": {decision.reason.code.value}: {decision.reason.message}"
    return text + (f": {decision.message}" if decision.message else "")


def _effects(effects: list[Effect]) -> Iterator[str]:
    for number, effect in enumerate(effects, 1):
        yield f"effect {number}: {type(effect).__name__} {_subject(effect)}".rstrip()


def _subject(effect: Effect) -> str:
    match effect:
        case PutRecord(record=record):
            attempt = f", attempt {record.attempt.number}" if record.attempt else ""
            ending = f", ends: {record.attempt.ending.cause.value}" if record.attempt and record.attempt.ending else ""
            return f"{record.status.value}{attempt}{ending}"
        case AppendHistory(record=record):
            return f"up to line {record.history_next - 1}"
        case PutOrder(order=order):
            return f"{order.run} {order.action.value} try {order.try_number}"
        case CloseGate(claim=claim):
            return f"{claim.run}: {claim.closed}"
        case CreateGang(request=request):
            return f"{request.ref.name} {request.accelerator_type} {request.ref.zone}".rstrip()
        case DeleteGang(ref=ref):
            return ref.name
        case PutComplete(record=record):
            return record.outcome.outcome if record.outcome else ""
        case DropRecord(name=name):
            return name
        case _:
            return ""


def _without_secrets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _cleaned(key, item) for key, item in value.items()}
    return [_without_secrets(item) for item in value] if isinstance(value, list) else value


def _cleaned(key: str, value: Any) -> Any:
    if key in ("env_vars", "env") and isinstance(value, Mapping):
        return dict.fromkeys(value, _REMOVED)
    if key == "token" and isinstance(value, str) and value:
        # Whether two tokens are equal decides who may run, so equal ones stay equal.
        return f"token-{hashlib.sha256(value.encode()).hexdigest()[:12]}"
    return _without_secrets(value)
