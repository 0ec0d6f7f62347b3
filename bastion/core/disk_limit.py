"""How a host is told that its job holds too much of a disk.

Who watches the disk writes the notice beside the host's state; the host's agent reads it, ends the
command as the user's failure and removes its files. The text is short because it must fit where a full disk still takes
it: into the target of a symbolic link, which takes no block.
"""

from __future__ import annotations

from dataclasses import dataclass

from bastion.core.errors import InvalidDocument

NOTICE_NAME = "over-disk-limit"
_KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskNotice:
    """What was measured, in bytes.

    Attributes:
        held: In the job's folders on this machine.
        limit: The most that a job may hold; 0: the disk ran full, and no other job holds more.
        free: On the disk.
        total: The disk's size.
    """

    held: int
    limit: int
    free: int
    total: int

    def to_text(self) -> str:
        return ":".join(f"{size // _KIB:d}" for size in (self.held, self.limit, self.free, self.total))

    @classmethod
    def parse(cls, text: str) -> DiskNotice:
        """Read what `to_text` writes.

        Raises:
            InvalidDocument: it is something else.
        """
        fields = text.split(":")
        if len(fields) != 4 or not all(field.isascii() and field.isdigit() and len(field) <= 15 for field in fields):
            raise InvalidDocument("this is not a notice about a disk")
        held, limit, free, total = (int(field) * _KIB for field in fields)
        return cls(held=held, limit=limit, free=free, total=total)

    def __str__(self) -> str:
        if self.limit:
            return f"the job's files take {shown(self.held)} of disk; its limit is {shown(self.limit)}"
        return (
            f"no space left on device: {shown(self.free)} of {shown(self.total)} are free, "
            f"and this job's files take the most, {shown(self.held)}"
        )


def shown(size: int) -> str:
    """Return a number of bytes for people: `3.2 MiB`."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < _KIB:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= _KIB
    return f"{amount:.1f} TiB"
