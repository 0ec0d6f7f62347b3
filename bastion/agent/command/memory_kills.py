"""Whether the kernel killed processes for lack of memory while a command ran, by the kernel's own counters.

`oom_kill` of the control group's `memory.events` (version 2) counts kills of its processes by any out-of-memory killer;
the agent and the command share that group. `oom_kill` of `/proc/vmstat` counts those of the whole host. It counts
before the process dies, so the numbers are right once the command has ended. A kernel without them says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bastion.core.exit_codes import MAYBE_OUT_OF_MEMORY, OUT_OF_MEMORY

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_VMSTAT = Path("/proc/vmstat")
_COUNTER = "oom_kill"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryKills:
    """The counters at one moment; None: the kernel does not tell."""

    group: int | None
    host: int | None

    @staticmethod
    def now(*, cgroups: Path = _CGROUPS, own: Path = _OWN, vmstat: Path = _VMSTAT) -> MemoryKills:
        """Read the counters of this process's control group and of its host."""
        group = _group(own)
        events = cgroups / group.lstrip("/") / "memory.events" if group is not None else None
        return MemoryKills(group=_counter(events) if events is not None else None, host=_counter(vmstat))

    def told(self, later: MemoryKills, *, shared: bool) -> str:
        """What the kernel says of the time between, without a full stop; empty if it says nothing.

        Args:
            shared: Other jobs may run in the same control group, so that its counter is only a hint.
        """
        in_group, on_host = _more(self.group, later.group), _more(self.host, later.host)
        if in_group and not shared:
            processes = "a process" if in_group == 1 else f"{in_group} processes"
            return f"{OUT_OF_MEMORY}: the kernel ended {processes} of the job on this host"
        if in_group or on_host:
            kills = in_group or on_host
            times = "once" if kills == 1 else f"{kills} times"
            return (
                f"{MAYBE_OUT_OF_MEMORY}: meanwhile the kernel ended a process on this host for lack of memory {times}"
            )
        return ""


def _more(before: int | None, after: int | None) -> int:
    return 0 if before is None or after is None else max(0, after - before)


def _group(own: Path) -> str | None:
    """The path of this process's group of version 2; None if there is none."""
    try:
        lines = own.read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return None
    return next((line[3:] for line in lines if line.startswith("0::")), None)


def _counter(path: Path) -> int | None:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return None
    fields = (line.split() for line in lines)
    number = next((each[1] for each in fields if len(each) == 2 and each[0] == _COUNTER), "")
    return int(number) if number.isascii() and number.isdigit() else None
