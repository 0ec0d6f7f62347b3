"""`bastion quota whatif FILE`: what a quota file would do, and would have done in the last days.

Layer: cli.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, plain, say
from bastion.cli.quota import diff, effect, forecast, place
from bastion.cli.quota import file as quota_file
from bastion.core.errors import EXIT_REFUSED, Refused
from quota import Policy, QuotaFileError, load
from quota.diff import difference

if TYPE_CHECKING:
    from bastion.client.quota.upload import QuotaDesk

_DAYS_MAX = 90


def _define(values: flags.FlagValues) -> None:
    place.define(values)
    flags.DEFINE_integer(
        "days", 14, "How many days to replay.", lower_bound=1, upper_bound=_DAYS_MAX, flag_values=values
    )
    flags.DEFINE_string(
        "against", None, "Another quota file to compare with, instead of the one in force.", flag_values=values
    )


def _run(call: Invocation) -> int:
    from bastion.client.quota import whatif as quota_whatif

    path, other = call.operands[0], call.flags.against
    if path == other == "-":
        raise Refused("only one of the two files can be - (stdin)")
    after = _load(path, json=call.json)
    against = _load(other, json=call.json) if other is not None and after is not None else None
    if after is None or (other is not None and against is None):
        return EXIT_REFUSED
    desk, _ = place.open_desk(call)
    before, where = (against, other) if against is not None else _in_force(desk)
    found = difference(before, after)
    answer = quota_whatif.ask(desk, before, after, days=call.flags.days)
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
    for line in (*effect.lines(answer.forecast, desk.now()), *forecast.lines(answer, desk.now())):
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


def _in_force(desk: QuotaDesk) -> tuple[Policy, str]:
    """The file that the bastion acts on, and where it lies.

    Raises:
        Refused: nobody can tell.
    """
    present = desk.present()
    policy = desk.policy_in_force(present)
    if policy is None:
        why = (
            f"is broken ({plain(present.problem)}), and the last good one" if present.problem else "does not exist: it"
        )
        raise Refused(
            f"the quota file {plain(desk.url)} {why} is not known here, so there is nothing to compare with; "
            "give --against=FILE"
        )
    if present.problem:
        say(f"bastion: the present file is broken ({plain(present.problem)}); it is compared with the last good one")
        return policy, f"the last good file of {desk.url}"
    return policy, f"{desk.url} (generation {present.generation})"


WHATIF = Command(
    summary="Tells who would wait shorter or longer under a quota file, and whose jobs it would stop.",
    usage="FILE [--days=14] [--against=FILE] [--quota_root=URL] [--output=json]",
    details="""The file is compared with the one in force, or with that of --against; either may be - for stdin. Nothing
        is written. First comes what changes and what would happen at once, as bastion quota upload --dry_run tells it;
        then when the waiting jobs start (p50, as bastion why estimates it).

        At last the jobs of the last days are run through the scheduler once more, under either file as if it had been
        in force all the time: waits from submission to the first start, evictions, and jobs that would never start,
        by project. The jobs come when they came and run for as long as their last attempt took; whoever is evicted
        begins anew. Both columns are replays: lost nodes, cancelled waits and what the cloud lacked are in neither.
        Jobs that still run are taken to run as long as like ones did, or twice as long as they have.

        The work is bounded: where all the days would take too long, or are not known any more, the last of them are
        replayed and the output says how many. In the JSON, queue has the waiting jobs, past the replay; seconds are
        null where no job started.""",
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
