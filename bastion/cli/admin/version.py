"""`bastion version`."""

from __future__ import annotations

import sys

from bastion import __version__
from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json


def _run(call: Invocation) -> int:
    python = sys.version.split()[0]
    if call.json:
        emit_json({"version": __version__, "python": python})
    else:
        print(f"bastion {__version__} (Python {python})")
    return 0


VERSION = Command(
    summary="Shows the version of bastion and of the Python that runs it.",
    usage="",
    examples=("bastion version",),
    takes_target=False,
    takes_output=True,
    run=_run,
)
