"""What an update of a job changes, and whether its running attempt can go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bastion.core.model.job_spec import JobSpec
from bastion.core.plain_text import plain

# What only the bastion reads, in every tick. Everything else is part of what runs, or of who pays for it.
IN_PLACE = frozenset({"metadata.priority", "limits.max_run_seconds", "runner.max_wait_seconds"})
# They say nothing of what is asked for.
_OF_THE_UPDATE = frozenset({"metadata.version", "metadata.creation_time"})
_PARTS = ("metadata", "runner", "limits")
_NAMED_MAX = 4
_VALUE_MAX_CHARS = 20


def changes(update: JobSpec, accepted: JobSpec) -> dict[str, tuple[Any, Any]]:
    """The fields that differ, as `field` or `part.field`, each with its value before and after; None: absent."""
    before, after = _fields(accepted.document), _fields(update.document)
    return {
        name: (before.get(name), after.get(name))
        for name in sorted(before.keys() | after.keys())
        if name not in _OF_THE_UPDATE and before.get(name) != after.get(name)
    }


def keeps_running(changed: Mapping[str, object]) -> bool:
    """Whether a running attempt goes on with these changes.

    An update that changes nothing asks for the attempt to begin again, as other clients of the format mean it.
    """
    return bool(changed) and changed.keys() <= IN_PLACE


def text(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """The changes in a few words, such as `priority 5 -> 9, command`; empty if there are none."""
    named = [_text(name, *values) for name, values in changed.items()]
    more = f", {len(named) - _NAMED_MAX} more" if len(named) > _NAMED_MAX else ""
    return ", ".join(named[:_NAMED_MAX]) + more


def _text(name: str, before: Any, after: Any) -> str:
    field = name.rpartition(".")[2]
    shown = [_shown(value) for value in (before, after)]
    return f"{field} {shown[0]} -> {shown[1]}" if all(shown) else plain(field[:_VALUE_MAX_CHARS])


def _shown(value: Any) -> str:
    """The value if it is short; empty if it is not."""
    if value is None:
        return "none"
    if isinstance(value, bool) or not isinstance(value, int | str):
        return ""
    return plain(value) if len(str(value)) <= _VALUE_MAX_CHARS else ""


def _fields(document: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in document.items():
        if name in _PARTS and isinstance(value, Mapping):
            found.update({f"{name}.{inner}": each for inner, each in value.items() if each is not None})
        elif value is not None:
            found[name] = value
    return found
