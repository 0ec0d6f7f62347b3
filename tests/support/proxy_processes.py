"""What the kernel tells of a running proxy's processes."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.support.attacked_proxy import AttackedProxy


def gone(process: int) -> bool:
    try:
        # Who has ended and was not yet waited for is gone, too.
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def connections(proxy: AttackedProxy, process: int) -> int:
    """How many sockets at the proxy's address a process has."""
    links = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        # It may be closed while we look.
        with contextlib.suppress(FileNotFoundError):
            links.add(str(descriptor.readlink()))
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return len(links & {f"socket:[{fields[9]}]" for fields in sockets if fields[1].endswith(f":{proxy.port:04X}")})


def of_each(proxy: AttackedProxy) -> list[int]:
    """How many connections of clients each of the processes that serve has."""
    return [connections(proxy, process) for process in proxy.processes[1:]]
