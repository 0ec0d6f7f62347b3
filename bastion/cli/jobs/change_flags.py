"""The flags of `bastion edit` and `bastion rerun`: what becomes different from the job's spec."""

from __future__ import annotations

from absl import flags

from bastion.cli.command import Invocation
from bastion.cli.jobs.command_line import assigned_labels, command_line, environment
from bastion.cli.jobs.options import duration
from bastion.client.jobs.edit import Changes
from bastion.core import limits
from bastion.core.errors import Refused

_NO_LIMIT = "none"


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_integer(
        "priority",
        None,
        f"From {limits.PRIORITY_MIN} (the highest) to {limits.PRIORITY_MAX}; orders the jobs of one project.",
        lower_bound=limits.PRIORITY_MIN,
        upper_bound=limits.PRIORITY_MAX,
        flag_values=values,
    )
    flags.DEFINE_string("project", None, "The project to charge.", flag_values=values)
    flags.DEFINE_string(
        "max_wait", None, "Maximum time to wait for capacity: 90s, 45m, 2h, 3d; none: no limit.", flag_values=values
    )
    flags.DEFINE_string(
        "max_run", None, "Maximum time to run, over all attempts: 90s, 45m, 2h, 3d; none: no limit.", flag_values=values
    )
    flags.DEFINE_multi_string("label", [], "KEY=VALUE; repeat it for more labels.", flag_values=values)
    flags.DEFINE_multi_string("env", [], "NAME=VALUE; repeat it for more variables.", flag_values=values)


def read(call: Invocation) -> Changes:
    """Raises Refused for a value that no job can have."""
    given = call.flags
    if given.project == "":
        raise Refused("--project is empty; give it a value or leave it out")
    if call.command is not None and not any(call.command):
        raise Refused("there is no command after --; leave -- out to keep the job's")
    return Changes(
        priority=given.priority,
        project_id=given.project,
        max_wait_seconds=_limit(call, "max_wait"),
        max_run_seconds=_limit(call, "max_run"),
        labels=assigned_labels(given.label),
        env=environment(given.env),
        command=command_line(call.command) if call.command else None,
    )


def _limit(call: Invocation, flag: str) -> int | None:
    return 0 if call.flags[flag].value == _NO_LIMIT else duration(call, flag)
