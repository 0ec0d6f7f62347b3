"""The notice to a host that its job uses too much disk.

The disk watcher writes it beside the host's state. The agent reads it, ends the command as the user's failure and
removes its files. The text fits into the target of a symbolic link, which a full disk can still store.
"""

from __future__ import annotations

from dataclasses import dataclass

from bastion.core.errors import InvalidDocument

NOTICE_NAME = "over-disk-limit"
_KIB = 1024
_UNITS = (("TiB", _KIB**4), ("GiB", _KIB**3), ("MiB", _KIB**2), ("KiB", _KIB))


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskNotice:
    """Measurements in bytes."""

    held: int  # by the job's folders on this machine
    limit: int  # maximum per job; 0: the disk is full, and no other job uses more
    # Both are of the whole disk.
    free: int
    total: int

    def to_text(self) -> str:
        return ":".join(f"{size // _KIB:d}" for size in (self.held, self.limit, self.free, self.total))

    @classmethod
    def parse(cls, text: str) -> DiskNotice:
        """Read the output of `to_text`; raises InvalidDocument if it is not a notice."""
        fields = text.split(":")
        if len(fields) != 4 or not all(field.isascii() and field.isdigit() and len(field) <= 15 for field in fields):
            raise InvalidDocument("not a disk notice")
        held, limit, free, total = (int(field) * _KIB for field in fields)
        return cls(held=held, limit=limit, free=free, total=total)

    def __str__(self) -> str:
        if self.limit:
            return f"the job's files use {shown(self.held)} of disk; the limit is {shown(self.limit)}"
        return (
            f"no space left on device: {shown(self.free)} of {shown(self.total)} is free, "
            f"and this job's files use the most, {shown(self.held)}"
        )


def shown_part(done: int, total: int) -> str:
    """Return two numbers of bytes as `3.1 of 12.0 GiB`."""
    unit, size = next(((unit, size) for unit, size in _UNITS if total >= size), ("B", 1))
    digits = 0 if size == 1 else 1
    return f"{done / size:.{digits}f} of {total / size:.{digits}f} {unit}"


def shown(size: int) -> str:
    """Return a number of bytes as `3.2 MiB`."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < _KIB:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= _KIB
    return f"{amount:.1f} TiB"
