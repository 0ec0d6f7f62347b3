"""`bastion proxy doctor`: whether this shell's storage clients would go through a proxy that works.

Layer: cli.
"""

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
    summary="Checks that storage clients started from here would reach a working proxy, and what they would lack.",
    usage="",
    details="""Looks at the environment of this shell as a client would, connects through the proxy that it names,
        verifies the certificate that it shows for storage.googleapis.com against the bundle of each client, and demands
        that the encrypting proxy's own authority has issued it. Where the proxy's own variables are set as well, it
        tries every key. Writes nothing to any bucket. Exits with 1 if something is wrong.""",
    examples=("bastion proxy doctor", "bastion proxy doctor --output=json"),
    takes_target=False,
    takes_output=True,
    run=_run,
)
