"""`bastion quota check FILE`: what a quota file means, or everything that is wrong with it.

Layer: cli.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, plain, say
from bastion.core.errors import EXIT_REFUSED, Refused
from quota import Policy, QuotaFileError, load, render_check


def _run(call: Invocation) -> int:
    path = call.operands[0]
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise Refused(f"the quota file {plain(path)} cannot be read: {error.strerror}") from error
    try:
        policy = load(data)
    except QuotaFileError as error:
        for problem in error.problems:
            say(f"bastion: {plain(path)}: {plain(problem)}")
        if call.json:
            problems = [{"line": problem.line, "message": problem.message} for problem in error.problems]
            emit_json({"valid": False, "problems": problems})
        return EXIT_REFUSED
    if call.json:
        emit_json(_document(policy))
    else:
        print(render_check(policy), end="")
    return 0


def _document(policy: Policy) -> dict[str, object]:
    return {
        "valid": True,
        "tiers": [dict(tier) for tier in policy.tiers],
        "projects": {
            project: {
                "entitlement": {kind: policy.entitlement(project, kind) for kind in policy.resource_types},
                "members": list(policy.members.get(project, ())),
            }
            for project in policy.projects
        },
        "warnings": [{"line": warning.line, "message": warning.message} for warning in policy.warnings],
    }


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
