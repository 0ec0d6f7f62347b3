"""`bastion audit`: who asked for what, when, proved how, and what came of it."""

from __future__ import annotations

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client
from bastion.cli.output import emit_json, plain, say, table
from bastion.cli.since import since
from bastion.client.audit import AuditFilter, read_audit
from bastion.core.errors import Refused
from bastion.core.instants import to_rfc3339
from bastion.core.model.audit import Came, Proof, Request
from bastion.core.model.audit_lines import AuditLine

# In lines of these outcomes the reason is what somebody looks for.
_WITH_REASON = (Came.WAITING, Came.REFUSED, Came.IGNORED, Came.APPLIED, Came.LOST, Came.FAILED)
_PROOFS = {
    Proof.INBOX: "inbox",
    Proof.FILE_OWNER: "owner",
    Proof.SELF_DECLARED: "declared",
    Proof.GENERATION: "file",
    Proof.DAEMON: "daemon",
}


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "since",
        "7d",
        "Show only lines since then: 90s, 10m, 1h30m or 3d ago, a day (UTC), or a time like 2026-01-02T03:04:05Z.",
        flag_values=values,
    )
    flags.DEFINE_string("user", None, "Show only what this user asked for.", flag_values=values)
    flags.DEFINE_string("job", None, "Show only what was asked about this job.", flag_values=values)
    kinds = [request.value for request in Request]
    flags.DEFINE_enum("request", None, kinds, "Show only requests of this kind.", flag_values=values)
    outcomes = [came.value for came in Came]
    flags.DEFINE_enum("outcome", None, outcomes, "Show only requests of which this came.", flag_values=values)


def _run(call: Invocation) -> int:
    for name, value in (("user", call.flags.user), ("job", call.flags.job)):
        if value == "":  # often a shell variable that is not set; it must not mean everybody
            raise Refused(f"--{name} is empty; give it a value or leave it out")
    client, _ = open_client(call)
    wanted = AuditFilter(
        since=since(call.flags.since, client.clock.now()),
        user=call.flags.user or "",
        job=call.flags.job or "",
        request=call.flags.request or "",
        outcome=call.flags.outcome or "",
    )
    lines = read_audit(client.store, wanted)
    if not lines:
        say(f"bastion: the audit trail has no such line since {to_rfc3339(wanted.since)[:19]}Z")
    if call.json:
        emit_json([line.model_dump(mode="json", exclude_defaults=True) for line in lines])
    elif lines:
        print(table(("TIME", "WHO", "PROOF", "REQUEST", "JOB", "OUTCOME"), [_row(line) for line in lines]), end="")
    return 0


def _row(line: AuditLine) -> tuple[str, ...]:
    proof = _PROOFS[line.proof] if line.proof is not None else "-"
    several = f"{line.count} x " if line.count > 1 else ""
    reason = f": {line.why}" if line.outcome in _WITH_REASON and line.why else ""
    return (
        line.at[:19].replace("T", " "),
        plain(line.who) or "-",
        proof,
        line.request.value,
        plain(line.job) or "-",
        f"{several}{line.outcome.value}{reason}",
    )


AUDIT = Command(
    summary="Shows who asked for what, how that is proved, and what came of it.",
    usage="[--since=WHEN] [--user=NAME] [--job=JOB] [--request=KIND] [--outcome=OUTCOME] [--output=json]",
    details="""Each line has the time (UTC), the user, the proof, the request, the job and the outcome; the newest comes
        last. The proof is "inbox" (only that user may write there), "owner" (of the file), "declared" (the document
        says so, and everybody may write it), "file" (whoever wrote that generation of an administrator's file) or
        "daemon" (it decided that itself). --output=json adds uid, generation, server time, digest and reason.

        Where the trail could not be written, a line with the outcome "lost" says how many lines are missing.""",
    examples=(
        "bastion audit --job=train-1 --request=cancel",
        "bastion audit --since=2026-11-20 --outcome=refused",
        "bastion audit --user=alice --since=1h30m",
    ),
    takes_output=True,
    define=_define,
    run=_run,
)
