"""The flags of `bastion launch` that describe the job, and the `JobOptions` that they make.

To add a job option, add its field in `bastion.core.model.job_spec` and its flag here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from bastion.cli.command import Invocation
from bastion.cli.jobs import after as job_after
from bastion.cli.jobs import code as job_code
from bastion.cli.jobs import encryption
from bastion.cli.jobs.command_line import (
    assigned_labels,
    check_text,
    environment,
    secret_references,
)
from bastion.cli.output import plain
from bastion.core import durations, limits
from bastion.core.errors import Refused

if TYPE_CHECKING:
    from bastion.core.model.job_spec import JobOptions

_TEXTS = (
    "name", "user_id", "project_id", "cleanup_command", "instance_type", "expected_duration", "max_run", "max_wait",
    "setup", "output_dir", "after_at_most", "group", "output_to", "image", "stuck_after",
)  # fmt: skip
_SLICE_ONLY = (
    "expected_duration", "max_tries", "max_wait", "setup", "output_dir", "output_to", "output_sync", "tensorboard",
    "image", "stuck_after", "secret", "input", "root_user",
)  # fmt: skip
_OUTPUT_DIR = "outputs"


def define(values: flags.FlagValues) -> None:
    """Define the flags."""
    flags.DEFINE_string("name", None, "The job's name. Default: generated.", flag_values=values)
    flags.DEFINE_string(
        "instance_type",
        "",
        "The slice to run on, like tpu-v4-32 or gpu-h100-8 (see bastion instance-types). "
        "Default: run on the bastion itself.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "num_replicas",
        1,
        "Number of slices of that type; a slice of GPUs is one host.",
        lower_bound=1,
        upper_bound=limits.NUM_REPLICAS_MAX,
        flag_values=values,
    )
    flags.DEFINE_string("project_id", None, "Project to charge. Default: your only project.", flag_values=values)
    flags.DEFINE_string("user_id", None, "Your user id. Default: your login name.", flag_values=values)
    flags.DEFINE_integer(
        "priority",
        limits.PRIORITY_DEFAULT,
        f"From {limits.PRIORITY_MIN} (the highest) to {limits.PRIORITY_MAX}; orders the jobs of one project.",
        lower_bound=limits.PRIORITY_MIN,
        upper_bound=limits.PRIORITY_MAX,
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "env", [], "NAME=VALUE for the command's environment; repeat it for more variables.", flag_values=values
    )
    flags.DEFINE_string(
        "cleanup_command",
        None,
        "A bash command line to run on the bastion after a job that started, however the job ended.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "expected_duration",
        None,
        "About how long the job will run: 90s, 45m, 2h, 3d. It improves the estimated start times of waiting jobs; "
        "it does not limit this one (--max_run does).",
        flag_values=values,
    )
    flags.DEFINE_string(
        "max_run",
        None,
        "Stop the job for good when it has held its slices this long, over all attempts: 90s, 45m, 2h, 3d; without a "
        "slice, when its command has run this long. Waiting does not count. Default: no limit.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "max_tries",
        None,
        "How often to run the command on its slices before the job fails. Default: 1.",
        lower_bound=1,
        upper_bound=limits.TRIES_MAX,
        flag_values=values,
    )
    flags.DEFINE_string(
        "max_wait",
        None,
        "Fail the job after it has waited this long for capacity: 90s, 45m, 2h, 3d. Default: no limit.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "stuck_after",
        None,
        "Restart the command in place after this long without output, checkpoint or step on any host: 10m, 2h. "
        "Default: never.",
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "secret",
        [],
        "NAME=SOURCE, a variable whose value the job's hosts fetch: sm://PROJECT/SECRET[/VERSION] from Google Secret "
        "Manager, k8s:secret/NAME/KEY from a Secret of the cluster, file:PATH there, env:NAME of their agent; repeat "
        "it for more secrets.",
        flag_values=values,
    )
    flags.DEFINE_boolean(
        "root_user",
        False,
        "Run setup and command as root on the job's hosts, where they have a user of their own otherwise. The project "
        "must be allowed to.",
        flag_values=values,
    )
    define_labels_and_image(values)
    job_after.define(values)
    job_code.define(values)
    flags.DEFINE_string(
        "setup",
        None,
        "A bash command line to run on each host before the command, in the bundle's folder. Default: install the "
        "bundle's requirements.txt or pyproject.toml; an empty value runs nothing.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "output_dir",
        None,
        "A folder below the command's own, like out. Its content is stored, and restored in the next attempt.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "output_to",
        None,
        "A bucket or folder of your own for what --output_dir stores, like s3://my-bucket/runs. Default: the bastion's "
        "bucket.",
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "input",
        [],
        "URL[:DIR], such as s3://data/tokens:data: fetch a bucket's objects, or a folder, into DIR before the setup. "
        "Default of DIR: the URL's last part. Repeat it for more inputs.",
        flag_values=values,
    )
    flags.DEFINE_boolean(
        "tensorboard",
        False,
        "The command writes event files to BASTION_TENSORBOARD_DIR, for bastion tensorboard. Without --output_dir, its "
        f"output folder is {_OUTPUT_DIR}.",
        flag_values=values,
    )
    flags.DEFINE_enum(
        "output_sync",
        None,
        ["each", "worker0"],
        "Which stored outputs each host starts an attempt with: its own, or those of host 0. Default: each.",
        flag_values=values,
    )
    encryption.define(values)


def define_labels_and_image(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "image",
        None,
        "The container image to run the command in, like us-docker.pkg.dev/my-project/images/train:v1; only for slices "
        "in a Kubernetes cluster. Default: the image that the operator has set, if any.",
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "label",
        [],
        "KEY=VALUE, a label of the job for bastion list --label and for the objects of the cluster that run it; "
        "repeat it for more labels.",
        flag_values=values,
    )


def read(call: Invocation) -> JobOptions:
    """Read the options from the flags.

    Raises:
        Refused: a value is not valid, or needs --instance_type.
        UnknownInstanceType: there is no such instance type.
    """
    from bastion.core.model import instance_types
    from bastion.core.model.job_spec import JobOptions

    variables = environment(call.flags.env)
    for flag in _TEXTS:
        check_text(call.flags[flag].value or "", f"--{flag}")
        if call.flags[flag].value == "" and call.flags[flag].present and flag != "setup":
            raise Refused(f"--{flag} is empty; give it a value or leave it out")
    if call.flags.instance_type:
        instance_types.lookup(call.flags.instance_type)
    else:
        _check_without_slice(call)
    labels, image = labels_and_image(call)
    job_after.check(call)
    return JobOptions(
        instance_type=call.flags.instance_type,
        num_replicas=call.flags.num_replicas,
        priority=call.flags.priority,
        env_vars=variables,
        cleanup_command=call.flags.cleanup_command,
        expected_duration_seconds=duration(call, "expected_duration"),
        max_tries=call.flags.max_tries,
        setup=call.flags.setup,
        output_dir=call.flags.output_dir or (_OUTPUT_DIR if call.flags.tensorboard else None),
        output_sync=call.flags.output_sync,
        max_run_seconds=duration(call, "max_run"),
        max_wait_seconds=duration(call, "max_wait"),
        proxy=encryption.chosen_mapping(call) or None,
        image=image or None,
        inputs=_inputs(call.flags.input) or None,
        output_to=_output_to(call),
        labels=labels or None,
        after_at_most_seconds=duration(call, "after_at_most"),
        group=call.flags.group,
        stuck_after_seconds=duration(call, "stuck_after", least=limits.STUCK_AFTER_MIN_SECONDS),
        secrets=secret_references(call.flags.secret, variables) or None,
        root=call.flags.root_user or None,
    )


def _inputs(texts: Sequence[str]) -> list[dict[str, str]]:
    from bastion.core.model import inputs

    found = []
    for text in texts:
        check_text(text, "--input")
        try:
            each = inputs.parse(text)
        except ValueError as error:
            raise Refused(f"--input={plain(text[:200])} {error}") from error
        found.append({"url": each.url, "dir": each.folder})
    return found


def _output_to(call: Invocation) -> str | None:
    from bastion.core.model import inputs

    text: str | None = call.flags.output_to
    if text is None:
        return None
    if not (call.flags.output_dir or call.flags.tensorboard):
        raise Refused("--output_to requires --output_dir")
    try:
        return inputs.check_url(text)
    except ValueError as error:
        raise Refused(f"--output_to={plain(text[:200])} {error}") from error


def labels_and_image(call: Invocation) -> tuple[dict[str, str], str]:
    """Read the flags of `define_labels_and_image`; raises Refused if a value is not valid."""
    from bastion.core.model.job_spec_format import check_image

    image = call.flags.image or ""
    if call.flags.image is not None:
        try:
            check_image(image)
        except ValueError as error:
            raise Refused(f"--image={plain(image[:100])} is not valid: it {error}") from error
    return assigned_labels(call.flags.label), image


def duration(call: Invocation, flag: str, *, least: int = 1) -> int | None:
    """The seconds of a flag like `90s`, `45m`, `2h` or `3d`; None without it."""
    text = call.flags[flag].value
    if not text:
        return None
    seconds = math.ceil(durations.seconds_of(text.strip()) or 0)
    if 1 <= seconds < least:
        raise Refused(f"--{flag}={plain(text)} is too short; the minimum is {least}s")
    if not 1 <= seconds <= limits.EXPECTED_DURATION_MAX_SECONDS:
        most = limits.EXPECTED_DURATION_MAX_SECONDS // 86400
        raise Refused(f"--{flag}={plain(text)} is not a valid duration; write it like 45m or 2h, up to {most}d")
    return seconds


def _check_without_slice(call: Invocation) -> None:
    if call.flags.num_replicas > 1:
        raise Refused("--num_replicas requires --instance_type")
    for flag in _SLICE_ONLY:
        value = call.flags[flag].value
        if value is not None and value is not False and value != []:
            raise Refused(f"--{flag} applies only to slice jobs; add --instance_type")
