"""Reading the audit trail: the days that are asked for, each line once, oldest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import NotFound
from bastion.core.instants import to_rfc3339, utc_day
from bastion.core.model import audit_lines
from bastion.core.model.audit_lines import AuditLine
from bastion.ports import ObjectStore

_READ_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which lines are wanted; an empty text is no condition. `since`: seconds since the epoch."""

    since: float = 0.0
    user: str = ""
    job: str = ""
    request: str = ""
    outcome: str = ""

    def wants(self, line: AuditLine) -> bool:
        """Whether the line is wanted; lines that were lost could have been."""
        if line.at < to_rfc3339(self.since):
            return False
        if line.request.value == "gap" and not (self.request or self.outcome):
            return True
        return (
            self.user in ("", line.who)
            and self.job in ("", line.job)
            and self.request in ("", line.request.value)
            and self.outcome in ("", line.outcome.value)
        )


def read_audit(store: ObjectStore, wanted: AuditFilter) -> list[AuditLine]:
    """Return the wanted lines: one listing, and one read for each 4 MiB of the days from `since` on."""
    first = utc_day(wanted.since)
    parts = [
        (part, meta.key)
        for meta in store.list(keys.AUDIT, start_after=keys.AUDIT + first[:-1])
        if (part := audit_lines.part_of(meta.key)) is not None and part[0] >= first
    ]
    found: dict[str, AuditLine] = {}
    for _, key in sorted(parts):
        for data in _lines(store, key):
            line = audit_lines.read(data)
            if line is not None and line.id not in found and wanted.wants(line):
                found[line.id] = line
    return sorted(found.values(), key=lambda line: line.at)


def _lines(store: ObjectStore, key: str) -> Iterator[bytes]:
    """The lines of an object that may grow meanwhile; a last one without its newline counts if it is whole."""
    start, rest = 0, b""
    while True:
        try:
            stored = store.get_range(key, start=start, size=_READ_BYTES)
        except NotFound:
            return
        start += len(stored.data)
        *whole, rest = (rest + stored.data).split(b"\n")
        yield from whole
        rest = rest[-2 * limits.AUDIT_LINE_MAX_BYTES :]
        if not stored.data or start >= stored.meta.size:
            break
    yield rest
