"""The flags of `bastion launch` about other jobs: those that it awaits, and its group."""

from __future__ import annotations

from absl import flags

from bastion.cli.command import Invocation
from bastion.cli.output import plain
from bastion.client import Client
from bastion.core import limits
from bastion.core.errors import Refused


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_multi_string(
        "after",
        [],
        "Start after this job has succeeded; if it does not, this job is refused. Repeat it for more jobs.",
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "after_any",
        [],
        "Start after this job has ended, however it ended; repeat it for more jobs.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "after_at_most",
        None,
        "Wait for the jobs of --after and --after_any no longer than this: 45m, 6h, 3d; then the job is refused. "
        "Default: no limit.",
        flag_values=values,
    )
    define_group(
        values,
        "A name for several jobs, for --group of bastion list, cancel and logs: lowercase letters, digits, '._-'.",
    )


def define_group(values: flags.FlagValues, meaning: str) -> None:
    flags.DEFINE_string("group", None, meaning, flag_values=values)


def check(call: Invocation) -> None:
    """Check the flags as far as that needs no bastion; raises Refused."""
    check_group(call.flags.group)
    names = [*call.flags.after, *call.flags.after_any]
    if "" in names:
        raise Refused("--after and --after_any need the name of a job; give it, or leave the flag out")
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise Refused(f"--after and --after_any name {plain(twice[:80])} twice; name each job once")
    if len(names) > limits.AFTER_MAX:
        raise Refused(f"--after and --after_any name {len(names)} jobs; the maximum is {limits.AFTER_MAX}")
    if call.flags.after_at_most is not None and not names:
        raise Refused("--after_at_most requires --after or --after_any")


def check_group(text: str | None) -> None:
    """Check the name of a group, if there is one; raises Refused."""
    from bastion.core.model import job_limits

    try:
        if text is not None:
            job_limits.check_group(text)
    except ValueError as error:
        raise Refused(f"--group: {plain(error)}") from error


def resolve(call: Invocation, client: Client, name: str) -> list[dict[str, str]]:
    """The items of the spec's `limits.after`.

    Raises:
        Refused: a job is not known, or the job `name` could never start after it.
    """
    from bastion.client.jobs.dependencies import find
    from bastion.core.model.job_limits import On

    wanted = [(job, On.SUCCEEDED) for job in call.flags.after] + [(job, On.ENDED) for job in call.flags.after_any]
    found = [find(client, job, on=on, of=name) for job, on in wanted]
    return [{"job": each.job, "uid": each.uid, "on": each.on.value} for each in found]
