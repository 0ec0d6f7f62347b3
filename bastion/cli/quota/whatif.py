"""`bastion quota whatif FILE`: what a quota file would do, and would have done in the last days."""

from __future__ import annotations

from typing import TYPE_CHECKING

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, plain, say
from bastion.cli.quota import diff, effect, forecast, quota_root
from bastion.cli.quota import file as quota_file
from bastion.core.errors import EXIT_REFUSED, Refused
from quota import Policy, QuotaFileError, load
from quota.diff import difference

if TYPE_CHECKING:
    from bastion.client.quota.upload import QuotaClient

_DAYS_MAX = 90


def _define(values: flags.FlagValues) -> None:
    quota_root.define(values)
    flags.DEFINE_integer(
        "days", 14, "Number of days to replay.", lower_bound=1, upper_bound=_DAYS_MAX, flag_values=values
    )
    flags.DEFINE_string("against", None, "Quota file to compare with. Default: the one in force.", flag_values=values)


def _run(call: Invocation) -> int:
    from bastion.client.quota import whatif as quota_whatif

    path, other = call.operands[0], call.flags.against
    if path == other == "-":
        raise Refused("only one of the two files can be - (stdin)")
    after = _load(path, json=call.json)
    against = _load(other, json=call.json) if other is not None and after is not None else None
    if after is None or (other is not None and against is None):
        return EXIT_REFUSED
    quota_client, _ = quota_root.open_quota_client(call)
    before, where = (against, other) if against is not None else _in_force(quota_client)
    found = difference(before, after)
    answer = quota_whatif.ask(quota_client, before, after, days=call.flags.days)
    for doubt in answer.forecast.doubts:
        say(f"bastion: {plain(doubt)}")
    if call.json:
        emit_json(
            {
                "valid": True,
                "against": where,
                "difference": diff.document(found),
                "jobs": effect.document(answer.forecast),
                **forecast.document(answer),
            }
        )
        return 0
    say(f"now: {plain(where)}; then: {plain(path)}; nothing is written")
    diff.show(found)
    for line in (*effect.lines(answer.forecast, quota_client.now()), *forecast.lines(answer, quota_client.now())):
        print(plain(line))
    return 0


def _load(path: str, *, json: bool) -> Policy | None:
    try:
        policy = load(quota_file.read(path))
    except QuotaFileError as error:
        quota_file.tell_problems(path, error, json=json)
        return None
    quota_file.tell_warnings(path, policy)
    return policy


def _in_force(quota_client: QuotaClient) -> tuple[Policy, str]:
    """The policy in force, and where it is. Raises `Refused` if it is unknown."""
    present = quota_client.present()
    policy = quota_client.policy_in_force(present)
    if policy is None:
        why = (
            f"is not valid ({plain(present.problem)}); the last valid one" if present.problem else "does not exist: it"
        )
        raise Refused(
            f"the quota file {plain(quota_client.url)} {why} is not known here, so there is nothing to compare with; "
            "use --against=FILE"
        )
    if present.problem:
        say(f"bastion: the present file is not valid ({plain(present.problem)}); comparing with the last valid one")
        return policy, f"the last valid file of {quota_client.url}"
    return policy, f"{quota_client.url} (generation {present.generation})"


WHATIF = Command(
    summary="Shows whose waits a quota file would change, and whose jobs it would stop.",
    usage="FILE [--days=14] [--against=FILE] [--quota_root=URL] [--output=json]",
    details="""Compares the file with the one in force, or with that of --against; either may be - for stdin. Nothing is
        written. The output starts with what changes and what would happen at once, as in bastion quota upload
        --dry_run, and then shows when the waiting jobs would start (p50, estimated as in bastion why).

        Then it replays the jobs of the last days under both files, as if each had been in force throughout. It shows by
        project the waits from submission to the first start, evictions, and jobs that would never start. Jobs are
        submitted at their original times and run as long as their last attempt; evicted jobs start over. Lost nodes,
        cancelled waits and missing cloud capacity are in neither replay. A job that is still running is assumed to take
        as long as similar ones, or twice as long as it has so far.

        If the replay of all days would take too long, or their data has expired, it covers fewer days, and the output
        says how many. In the JSON, queue has the waiting jobs and past the replay; seconds are null if no job
        started.""",
    examples=(
        "bastion quota whatif quotas.config",
        "bastion quota whatif quotas.config --days=30 --output=json",
        "bastion quota whatif quotas.config --against=other.config",
    ),
    operands=(1, 1),
    takes_output=True,
    define=_define,
    run=_run,
)
