"""`bastion launch`: a command line becomes a job.

Layer: cli.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client
from bastion.cli.jobs import code as job_code
from bastion.cli.jobs import encryption as job_proxy
from bastion.cli.jobs.command_line import check_text, command_line, draw_name, environment, masked, one_word, unwrap
from bastion.cli.jobs.submitted import check_quota, define_check, report_submitted, wait_for_submitted
from bastion.cli.output import emit_json, plain, say
from bastion.cli.user import choose_project, default_user
from bastion.core import limits
from bastion.core.errors import Refused

if TYPE_CHECKING:
    from bastion.client import Client
    from bastion.client.code.bundle import Bundle
    from bastion.core.model.job_spec import JobSpec

_EXAMPLE = "bastion launch --instance_type=tpu-v4-32 --wait -- python3 train.py"
_TEXTS = (
    "name", "user_id", "project_id", "cleanup_command", "instance_type", "expected_duration", "max_wait", "setup",
    "output_dir",
)  # fmt: skip
_NO_COMMAND = "the command to run is missing; it comes after --"


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("name", None, "The job's name. Without it one is made up.", flag_values=values)
    flags.DEFINE_string(
        "instance_type",
        "",
        "What to run on, like tpu-v4-32 (bastion instance-types lists them). Without it the command runs on the "
        "bastion itself.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "num_replicas",
        1,
        "How many slices of that type.",
        lower_bound=1,
        upper_bound=limits.NUM_REPLICAS_MAX,
        flag_values=values,
    )
    flags.DEFINE_string(
        "project_id", None, "Project that is charged. Without it your only project.", flag_values=values
    )
    flags.DEFINE_string("user_id", None, "Who you are. Without it your login name.", flag_values=values)
    flags.DEFINE_integer(
        "priority",
        limits.PRIORITY_DEFAULT,
        f"From {limits.PRIORITY_MIN} (the highest) to {limits.PRIORITY_MAX}; counts within the project.",
        lower_bound=limits.PRIORITY_MIN,
        upper_bound=limits.PRIORITY_MAX,
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "env", [], "NAME=VALUE for the command's environment; once for each variable.", flag_values=values
    )
    flags.DEFINE_string(
        "cleanup_command",
        None,
        "One bash command line that runs on the bastion after a job that was started, however it ended.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "expected_duration",
        None,
        "How long it will run, about: 90s, 45m, 2h, 3d. It only tells when those who wait can start; nothing stops "
        "the job then.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "max_tries",
        None,
        "How often the command may run on its slices before its failure counts. Without it once.",
        lower_bound=1,
        upper_bound=limits.TRIES_MAX,
        flag_values=values,
    )
    flags.DEFINE_string(
        "max_wait",
        None,
        "How long it may wait for capacity in all: 90s, 45m, 2h, 3d. Then it fails. Without it for ever.",
        flag_values=values,
    )
    job_code.define(values)
    flags.DEFINE_string(
        "setup",
        None,
        "One bash command line that runs in the bundle's folder on each host before the command. Without it the "
        "bundle's requirements.txt or pyproject.toml is installed; an empty one does nothing.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "output_dir",
        None,
        "Folder below the command's own, like out, whose content is stored and restored in the next attempt.",
        flag_values=values,
    )
    flags.DEFINE_enum(
        "output_sync",
        None,
        ["each", "worker0"],
        "What an attempt begins with on each host: its own stored outputs, or host 0's. Without it its own.",
        flag_values=values,
    )
    job_proxy.define(values)
    flags.DEFINE_boolean(
        "wait", False, "Show progress and output until the job ends, and return its exit code.", flag_values=values
    )
    define_check(values)
    flags.DEFINE_boolean("dry_run", False, "Show the job spec and write nothing.", flag_values=values)
    flags.DEFINE_boolean(
        "show_secrets",
        False,
        "With --dry_run: show the values of variables that sound secret, so that bastion submit takes the spec.",
        flag_values=values,
    )
    flags.DEFINE_boolean(
        "raw", False, "Keep the single quotes around a last argument that follows -c.", flag_values=values
    )


def _run(call: Invocation) -> int:
    if not call.command:
        what = "nothing follows the --; write the command there" if call.command is not None else _NO_COMMAND
        raise Refused(f"{what}, for example: {_EXAMPLE}")
    if not call.command[0].strip():
        raise Refused(f"the command's first word is empty; write a program, for example: {_EXAMPLE}")
    arguments, note = (list(call.command), "") if call.flags.raw else unwrap(call.command)
    command = command_line(arguments)
    variables = environment(call.flags.env)
    for flag in _TEXTS:
        check_text(call.flags[flag].value or "", f"--{flag}")
        if call.flags[flag].value == "" and call.flags[flag].present and flag != "setup":
            raise Refused(f"--{flag} is empty; give it a value or leave it out")
    if call.flags.instance_type:
        _check_type(call.flags.instance_type)
    else:
        _check_without_slice(call)
    proxy = job_proxy.chosen(call)
    expected, max_wait = (_duration(call, flag) for flag in ("expected_duration", "max_wait"))
    for hint in filter(None, (note, one_word(arguments))):
        say(f"bastion: {hint}")
    user = call.flags.user_id or default_user()
    bundle = job_code.packed(call, without=job_code.file_of_stdout() if call.flags.dry_run else "")
    client, target = open_client(call, start=not call.flags.dry_run)
    job_proxy.check_place(proxy, target.root)
    project = call.flags.project_id or choose_project(client, user)
    spec = _spec(call, client, command, arguments, variables, user, project, expected, max_wait, bundle, proxy)
    if call.flags.dry_run:
        return _show(call, client, spec, bundle)
    check_quota(call, client, spec)
    if bundle is not None:
        job_code.store(client, bundle)
    submitted = client.submit(spec)
    report_submitted(call, client, target, submitted, waiting=call.flags.wait)
    return wait_for_submitted(call, client, target, submitted) if call.flags.wait else 0


def _duration(call: Invocation, flag: str) -> int | None:
    text = call.flags[flag].value
    return seconds_of(text, flag) if text else None


def seconds_of(text: str, flag: str) -> int:
    """Seconds of a flag's duration like `90s`, `45m`, `2h` or `3d`.

    Raises:
        Refused: it is no duration, or longer than a year.
    """
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])", text.strip())
    seconds = math.ceil(float(found[1]) * units[found[2]]) if found else 0
    if not 1 <= seconds <= limits.EXPECTED_DURATION_MAX_SECONDS:
        most = limits.EXPECTED_DURATION_MAX_SECONDS // 86400
        raise Refused(f"--{flag}={plain(text)}: write a number and a unit, like 45m or 2h, up to {most}d")
    return seconds


def _check_without_slice(call: Invocation) -> None:
    """Refuses what only a job on slices has."""
    if call.flags.num_replicas > 1:
        raise Refused("--num_replicas needs --instance_type: only slices come several at once")
    for flag in ("expected_duration", "max_tries", "max_wait", "setup", "output_dir", "output_sync"):
        if call.flags[flag].value is not None:
            raise Refused(f"--{flag} needs --instance_type: only for jobs on slices it means anything")


def _check_type(name: str) -> None:
    """Before anything is started for it."""
    from bastion.core.model import instance_types

    instance_types.lookup(name)


def _spec(
    call: Invocation,
    client: Client,
    command: str,
    arguments: list[str],
    variables: dict[str, str],
    user: str,
    project: str,
    expected: int | None,
    max_wait: int | None,
    bundle: Bundle | None,
    proxy: str,
) -> JobSpec:
    from bastion.core.model import job_spec

    return job_spec.new(
        name=call.flags.name if call.flags.name is not None else draw_name(user, arguments),
        bastion=client.bastion,
        command=command,
        user_id=user,
        project_id=project,
        now=client.clock.now(),
        instance_type=call.flags.instance_type,
        num_replicas=call.flags.num_replicas,
        priority=call.flags.priority,
        env_vars=variables,
        cleanup_command=call.flags.cleanup_command,
        expected_duration_seconds=expected,
        max_tries=call.flags.max_tries,
        setup=call.flags.setup,
        output_dir=call.flags.output_dir,
        output_sync=call.flags.output_sync,
        max_wait_seconds=max_wait,
        proxy=proxy or None,
        code_asset_path=None if bundle is None else job_code.url_of(client, bundle),
    )


def _show(call: Invocation, client: Client, spec: JobSpec, bundle: Bundle | None) -> int:
    """A dry run: the spec on stdout, and what the project holds."""
    from bastion.client.jobs.startable import obstacle

    document: dict[str, Any] = dict(spec.document)
    variables, hidden = masked(spec.env_vars)
    if hidden and call.flags.show_secrets:
        say(f"bastion: the spec has the values of {', '.join(hidden)}; keep it private")
    elif hidden:
        document["env_vars"] = variables
        say(
            f"bastion: the values of {', '.join(hidden)} are hidden as ***, which bastion submit refuses; "
            "--show_secrets shows them"
        )
    if bundle is not None:
        say("bastion: the code is not uploaded; bastion submit, run in this folder, uploads it")
    status = client.status() or {}
    project = (status.get("projects") or {}).get(spec.project_id)
    if call.json:
        emit_json({"spec": document, "project": project, "pool": status.get("pool")})
        return 0
    emit_json(document)
    problem = obstacle(client, spec)
    if problem:
        say(f"bastion: launch would refuse it: {problem}")
    for kind, amount in sorted(spec.resources.items()):
        say(f"bastion: it needs {amount} {kind}{_holdings(status, spec.project_id, kind, amount)}")
    say("bastion: this was a dry run; nothing was written")
    return 0


def _holdings(status: Any, project: str, kind: str, amount: int) -> str:
    usage = (status.get("projects") or {}).get(project)
    pool = (status.get("pool") or {}).get(kind)
    parts = []
    if usage:
        held, owed = usage.get("usage", {}).get(kind, 0), usage.get("entitlement", {}).get(kind, 0)
        parts.append(f"{plain(project)} holds {held} of its {owed}")
    if pool:
        total, free = pool.get("total"), pool.get("free")
        parts.append(f"{free} of {total} are free")
        if isinstance(total, int) and amount > total:
            parts.append("that is more than the whole pool has, so it would wait until the pool grows")
    return f"; {'; '.join(parts)}" if parts else ""


LAUNCH = Command(
    summary="Runs a command as a job: on a TPU slice, or without --instance_type on the bastion itself.",
    usage="[flags] -- COMMAND [ARGUMENT...]",
    details="""The command is what follows the first --; its arguments reach it exactly as they were given here. On a
        slice it runs once on every host.

        With --wait, bastion shows the job's progress on stderr and its output as it appears (its stdout on stdout, its
        stderr on stderr, with the worker's number before each line if there are several hosts), and exits with the
        job's own exit code. The codes that are bastion's: 64 refused, 75 the infrastructure gave up, 143 cancelled,
        130 after Ctrl-C, which detaches and lets the job go on. With --output=json as well, stdout is kept for one
        JSON document at the end, and all of the job's output goes to stderr.

        In a git working tree the current folder goes along, as what git tracks and what it does not ignore; the command
        runs in it. It is stored once, and refused if something in it looks like a secret.

        Without --project_id, the job is charged to the only project that the bastion's quota file gives you. With
        nothing configured, the bastion on this machine is used, and started if it does not run.

        With --proxy, what the job stores in a bucket named there is encrypted on each host, on its way, by a proxy that
        its storage clients are led to; docs/how-to/encrypt-a-bucket.md tells the whole.

        An older documented form, -- python3 -c "'import jax; print(jax.devices())'", works as well: a last argument
        that directly follows -c and is wrapped in one pair of single quotes loses that pair. --raw keeps it.""",
    examples=(
        "bastion launch --wait -- python3 -c 'print(6 * 7)'",
        _EXAMPLE,
        "bastion launch --name=sweep-1 --instance_type=tpu-v5litepod-16 --num_replicas=2 --env LR=0.1 -- ./run.sh",
    ),
    takes_command=True,
    takes_output=True,
    define=_define,
    run=_run,
)
