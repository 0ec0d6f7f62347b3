"""`bastion quota check FILE`: what a quota file means, or everything that is wrong with it.

Layer: cli.
"""

from __future__ import annotations

from bastion.cli import quota_file
from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json
from bastion.core.errors import EXIT_REFUSED
from quota import QuotaFileError, load, render_check


def _run(call: Invocation) -> int:
    path = call.operands[0]
    try:
        policy = load(quota_file.read(path))
    except QuotaFileError as error:
        quota_file.tell_problems(path, error, json=call.json)
        return EXIT_REFUSED
    if call.json:
        emit_json(quota_file.document(policy))
    else:
        print(render_check(policy), end="")
    return 0


CHECK = Command(
    summary="Checks a quota file and shows each project's entitlement; exits with 64 if the file is broken.",
    usage="FILE [--output=json]",
    details="""FILE may be - for stdin. Every problem is shown with its line. A bastion that finds a broken quota file
        goes on with the last good one.""",
    examples=("bastion quota check project-quotas.config", "cat quotas.toml | bastion quota check -"),
    operands=(1, 1),
    takes_target=False,
    takes_output=True,
    run=_run,
)
