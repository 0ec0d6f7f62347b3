"""The commands of a benchmark's finisher, where commands on the bastion's host have a user of their own.

They are this package's own code and need the bucket, so they run as the agent: as a program without a shell, outside of
the job's folder, and without the variables of the spec, but the lines of the environment. Those lines are the user's:
they run as the job's user, in the job's folder, with its variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bastion.agent.environment import VM_MARKER, own_variables
from bastion.agent.host_parts import HostParts
from bastion.core import benchmark_steps
from bastion.core.benchmark_steps import Lines
from bastion.core.bucket.markers import COMMAND_MARKER
from bastion.core.bucket.protocol import Order


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkStep:
    """A program that the agent runs as itself."""

    program: Sequence[str]
    variables: Mapping[str, str] = field(repr=False)


def of(parts: HostParts, order: Order, variables: Mapping[str, str]) -> BenchmarkStep | None:
    """Return the step that the order's command is; None for any other command. Raises OSError.

    Args:
        variables: The environment of the job's user.
    """
    user, root = parts.command_user, parts.identity.arguments.root
    if user is None or not parts.identity.on_bastion:
        return None
    step = benchmark_steps.parse(order.command, root)
    if step is None or parts.identity.arguments.job != benchmark_steps.finisher(step.name, step.run):
        return None
    file = parts.state.folder / "lines.json"
    lines = Lines(user=f"{user.uid}:{user.gid}", folder=str(parts.state.work_dir), variables=dict(variables))
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
        stream.write(lines.to_bytes())
    given = {name: order.env[name] for name in benchmark_steps.VARIABLES if name in order.env}
    ours = {name: variables[name] for name in _OURS if name in variables}
    return BenchmarkStep(
        program=[parts.interpreter, "-I", "-m", "bastion.cli.main", *step.arguments(root)],
        variables=own_variables(parts.environ)
        | given
        | ours
        | {"PYTHONUNBUFFERED": "1", benchmark_steps.LINES_FILE: str(file)},
    )


_OURS = (
    "BASTION_ATTEMPT",
    "BASTION_JOB",
    "BASTION_PROJECT_ID",
    "BASTION_RUN",
    "BASTION_TRY",
    "BASTION_USER_ID",
    COMMAND_MARKER,
    VM_MARKER,
)
