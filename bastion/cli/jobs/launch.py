"""`bastion launch`: run a command line as a job."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client
from bastion.cli.jobs import after as job_after
from bastion.cli.jobs import code as job_code
from bastion.cli.jobs import encryption, job_file
from bastion.cli.jobs import options as job_options
from bastion.cli.jobs.command_line import command_line, draw_name, one_word, unwrap
from bastion.cli.jobs.secret_warning import warn_of
from bastion.cli.jobs.submitted import check_quota, define_check, report_submitted, wait_for_submitted
from bastion.cli.output import emit_json, plain, say
from bastion.cli.target import resolve
from bastion.core import secret_signs
from bastion.core.bucket import keys
from bastion.core.errors import Refused
from bastion.core.status.document import StatusDocument
from bastion.user_config.user import choose_project, default_user

if TYPE_CHECKING:
    from bastion.client import Client
    from bastion.client.code.bundle import Bundle
    from bastion.core.model.job_spec import JobSpec

_EXAMPLE = "bastion launch --instance_type=tpu-v4-32 --wait -- python3 train.py"


def _define(values: flags.FlagValues) -> None:
    job_file.define(values)
    job_options.define(values)
    flags.DEFINE_boolean(
        "wait", False, "Show progress and output until the job ends, and return its exit code.", flag_values=values
    )
    define_check(values)
    flags.DEFINE_boolean("dry_run", False, "Show the job spec and write nothing.", flag_values=values)
    flags.DEFINE_boolean(
        "show_secrets",
        False,
        "With --dry_run: show the values of variables whose names look secret; bastion submit needs them.",
        flag_values=values,
    )
    flags.DEFINE_boolean(
        "raw", False, "Keep the single quotes around a last argument that follows -c.", flag_values=values
    )


def _run(call: Invocation) -> int:
    from bastion.core.model import job_spec

    call, written = job_file.merged(call)
    arguments, hints = (written.split(), []) if written else _arguments(call)
    command = written or command_line(arguments)
    options = job_options.read(call)
    # Everything that needs no bastion is checked first: opening the client may start one.
    root = resolve(call.flags).root
    encryption.check_place(options.proxy or "", root)
    user = call.flags.user_id or default_user()
    name = call.flags.name if call.flags.name is not None else draw_name(user, arguments)
    keys.check_job_name(name, bastion=root.bastion, new=True)
    for hint in hints:
        say(f"bastion: {hint}")
    client, target = open_client(call, start=not call.flags.dry_run)
    make = partial(
        job_spec.new,
        name=name,
        bastion=client.bastion,
        command=command,
        user_id=user,
        project_id=call.flags.project_id or choose_project(client, user),
        now=client.clock.now(),
    )
    options = replace(options, after=job_after.resolve(call, client, name) or None)
    spec = make(options=options)
    if not call.flags.dry_run:  # packing and uploading take long: whatever can refuse the job comes first
        if call.flags.name is not None:
            client.check_free(name, user)
        warn_of(spec)
        check_quota(call, client, spec)
    bundle = job_code.pack_bundle(call, without=job_code.file_of_stdout() if call.flags.dry_run else "")
    if bundle is not None:
        spec = make(options=replace(options, code_asset_path=job_code.url_of(client, bundle)))
    if call.flags.dry_run:
        return _show(call, client, spec, bundle)
    if bundle is not None:
        job_code.store(client, bundle)
    submitted = client.submit(spec)
    report_submitted(call, client, target, submitted, waiting=call.flags.wait)
    return wait_for_submitted(call, client, target, submitted) if call.flags.wait else 0


def _arguments(call: Invocation) -> tuple[list[str], list[str]]:
    """The command's arguments, and hints about them for the user."""
    if not call.command:
        what = "there is no command after --" if call.command is not None else "the command is missing; it follows --"
        raise Refused(f"{what}, for example: {_EXAMPLE}")
    if not call.command[0].strip():
        raise Refused(f"the command is empty; name a program, for example: {_EXAMPLE}")
    arguments, note = (list(call.command), "") if call.flags.raw else unwrap(call.command)
    return arguments, [hint for hint in (note, one_word(arguments)) if hint]


def _show(call: Invocation, client: Client, spec: JobSpec, bundle: Bundle | None) -> int:
    """Print the spec, and on stderr what the project holds."""
    from bastion.client.jobs.startable import host_obstacle, no_place, obstacle

    document: dict[str, Any] = dict(spec.document)
    warn_of(spec)
    hidden = secret_signs.secret_variables(spec.env_vars)
    if hidden and call.flags.show_secrets:
        say(f"bastion: this spec contains the values of {', '.join(hidden)}; keep it private")
    elif hidden:
        document = secret_signs.masked_document(document)
        say(
            f"bastion: the values of {', '.join(hidden)} are hidden (***), and bastion submit refuses that; "
            "use --show_secrets to show them"
        )
    if bundle is not None:
        say("bastion: the code is not uploaded; run bastion submit in this folder to upload it")
    status = client.status() or StatusDocument()
    if call.json:
        published = status.model_dump(mode="json", include={"projects", "pool"})
        emit_json({"spec": document, "project": published["projects"].get(spec.project_id), "pool": published["pool"]})
        return 0
    emit_json(document)
    problem = host_obstacle(client, spec) or no_place(client, spec) or obstacle(client, spec)
    if problem:
        say(f"bastion: launch would refuse this job: {problem}")
    for resource_type, amount in sorted(spec.resources.items()):
        say(f"bastion: needs {amount} {resource_type}{_holdings(status, spec.project_id, resource_type, amount)}")
    say("bastion: dry run: nothing was written")
    return 0


def _holdings(status: StatusDocument, project_id: str, resource_type: str, amount: int) -> str:
    project, pool = status.projects.get(project_id), status.pool.get(resource_type)
    parts = []
    if project is not None:
        held, owed = project.usage.get(resource_type, 0), project.entitlement.get(resource_type, 0)
        parts.append(f"project {plain(project_id)} is using {held}; its share is {owed}")
    if pool is not None:
        parts.append(f"{pool.free} of {pool.total} free")
        if amount > pool.total:
            parts.append("that is more than the whole pool, so the job would wait until the pool grows")
    return f"; {'; '.join(parts)}" if parts else ""


LAUNCH = Command(
    summary="Runs a command as a job: on slices of TPUs or GPUs, or without --instance_type on the bastion.",
    usage="[flags] -- COMMAND [ARGUMENT...]",
    details="""The command is everything after the first --; its arguments are passed on unchanged. On a slice it runs
        once on every host.

        With --wait, bastion shows the job's progress on stderr and its output as it appears: stdout on stdout, stderr
        on stderr, each line prefixed with the worker's number if there are several hosts. It exits with the job's own
        exit code, or with one of bastion's: 64 refused, 75 infrastructure failure, 143 cancelled, 130 after Ctrl-C,
        which detaches and leaves the job running. With --output=json as well, stdout holds one JSON document at the
        end, and all of the job's output goes to stderr.

        In a git repository, bastion packs the current folder (the files that git tracks or does not ignore), uploads it
        once, and runs the command in it. It refuses files that look like secrets.

        Without --project_id, the job is charged to your only project in the bastion's quota file. If no bastion is
        configured, the one on this machine is used, and started if necessary.

        --file=job.toml has flags as keys: instance_type = "tpu-v4-32", priority = 2, label = ["team=vision"], env as a
        table, and command, a command line or a list of arguments. What is on the command line wins; env and label are
        joined name by name.

        With --proxy, a proxy on each host encrypts what the job stores in the named buckets; see
        docs/how-to/encrypt-a-bucket.md.

        An older form, -- python3 -c "'import jax; print(jax.devices())'", still works: if the last argument follows -c
        and is wrapped in one pair of single quotes, that pair is removed. --raw keeps it.""",
    examples=(
        "bastion launch --wait -- python3 -c 'print(6 * 7)'",
        _EXAMPLE,
        "bastion launch --name=sweep-1 --instance_type=tpu-v5litepod-16 --num_replicas=2 --env LR=0.1 -- ./run.sh",
        "bastion launch --instance_type=tpu-v6e-16 --image=us-docker.pkg.dev/p/images/train:v1 --label team=vision "
        "-- python3 train.py",
        "bastion launch --instance_type=gpu-h100-8 --num_replicas=2 -- torchrun train.py",
    ),
    takes_command=True,
    takes_output=True,
    define=_define,
    run=_run,
)
