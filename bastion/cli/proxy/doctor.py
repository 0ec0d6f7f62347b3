"""`bastion proxy doctor`: check that this shell's storage clients would use a working proxy."""

from __future__ import annotations

import os

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, plain


def _run(call: Invocation) -> int:
    from bastion.wiring import proxy_doctor

    findings = proxy_doctor.examine(os.environ)
    if call.json:
        emit_json([{"what": found.what, "good": found.good, "advice": found.advice} for found in findings])
    else:
        for found in findings:
            print(f"{'ok  ' if found.good else 'BAD '} {plain(found.what)}")
            if found.advice:
                print(f"     {plain(found.advice)}")
    return 0 if all(found.good for found in findings) else 1


DOCTOR = Command(
    summary="Checks that storage clients started from here would reach a working proxy, and what they lack.",
    usage="",
    details="""Reads the environment of this shell as a client would, and connects through the proxy that it names.
        Checks the proxy's certificate for storage.googleapis.com against the bundle of each client, and that the
        encrypting proxy's own authority has issued it. If the proxy's own variables are set as well, it tries every
        key. Writes nothing to any bucket. Exits with 1 if something is wrong.""",
    examples=("bastion proxy doctor", "bastion proxy doctor --output=json"),
    takes_target=False,
    takes_output=True,
    run=_run,
)
