"""Which run a command takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bastion.cli.output import plain, say

if TYPE_CHECKING:
    from bastion.client import Client


def find(client: Client, operand: str) -> tuple[str, str]:
    """Return name and run of `NAME/RUN`, or the newest run of `NAME`, which is told. Raises Refused."""
    from bastion.benchmark.measurements import find_run

    return find_run(client.store, operand, now=client.clock.now(), tell=lambda text: say(f"bastion: {plain(text)}"))
