"""The flags that select jobs, of `bastion list` and `bastion cancel`."""

from __future__ import annotations

from absl import flags

from bastion.cli.command import Invocation
from bastion.cli.jobs.after import check_group, define_group
from bastion.cli.jobs.command_line import wanted_labels
from bastion.cli.output import plain
from bastion.cli.parsing import did_you_mean
from bastion.client.jobs.selection import STATUSES, Selection
from bastion.core.errors import Refused
from bastion.user_config.user import default_user


def define(values: flags.FlagValues, verb: str) -> None:
    """Define the flags; `verb`: what the command does to the jobs, such as `Show`."""
    flags.DEFINE_boolean("mine", False, f"{verb} only your own jobs.", flag_values=values)
    flags.DEFINE_list("user", [], f"{verb} only jobs of these users.", flag_values=values)
    flags.DEFINE_list("project", [], f"{verb} only jobs of these projects.", flag_values=values)
    flags.DEFINE_list(
        "status", [], f"{verb} only jobs in one of these states: {', '.join(STATUSES)}.", flag_values=values
    )
    flags.DEFINE_list("type", [], f"{verb} only jobs on these instance types.", flag_values=values)
    flags.DEFINE_multi_string(
        "label",
        [],
        f"{verb} only jobs with this label: KEY=VALUE, or KEY for any value; repeat it to require several.",
        flag_values=values,
    )
    define_group(values, f"{verb} only jobs of this group (bastion launch --group).")


def selection(call: Invocation) -> Selection:
    """The jobs that the flags and patterns of names select. Raises `Refused`."""
    given = call.flags
    check_group(given.group)
    for flag in ("user", "project", "status", "type"):
        values = given[flag].value or []
        if given[flag].present and (not values or "" in values):
            raise Refused(f"--{flag} has an empty value; leave the flag out to select all")
    if "" in call.operands:
        raise Refused("a pattern of names is empty; leave it out to select all, or quote '*'")
    for status in given.status:
        if status not in STATUSES:
            near = did_you_mean(status, STATUSES)
            raise Refused(f"--status={plain(status)} is no state of a job{near or ': ' + ', '.join(STATUSES)}")
    users = {*given.user, *((default_user(),) if given.mine else ())}
    return Selection(
        users=frozenset(users),
        projects=frozenset(given.project),
        statuses=frozenset(given.status),
        types=frozenset(given.type),
        patterns=call.operands,
        labels=wanted_labels(given.label),
        group=given.group,
    )
