"""`bastion submit`: submit a job spec from a file."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client
from bastion.cli.jobs import code as job_code
from bastion.cli.jobs import encryption
from bastion.cli.jobs import options as job_options
from bastion.cli.jobs.secret_warning import warn_of
from bastion.cli.jobs.submitted import check_quota, define_check, report_submitted, wait_for_submitted
from bastion.cli.output import plain, say
from bastion.cli.target import resolve
from bastion.core import documents, limits, secret_signs
from bastion.core.errors import InvalidSpec, Refused


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("spec", None, "The JSON file; - means stdin.", flag_values=values)
    job_options.define_labels_and_image(values)
    job_code.define(values)
    define_check(values)
    flags.DEFINE_boolean(
        "wait", False, "Show progress and output until the job ends, and return its exit code.", flag_values=values
    )


def _run(call: Invocation) -> int:
    from bastion.client.jobs import dependencies
    from bastion.core.model import job_spec

    path = call.flags.spec
    if not path:
        raise Refused("--spec is required: the file with the job spec, for example bastion submit --spec=job.json")
    data = _changed(call, path, _read(path))
    # Everything that needs no bastion is checked first: opening the client may start one.
    root = resolve(call.flags).root
    job_spec.from_document(_document(path, data), name=_name(path, data))
    spec = job_spec.parse(data, name=_name(path, data), bastion=root.bastion)
    hidden = secret_signs.still_masked(spec.env_vars)
    if hidden:
        raise Refused(
            f"this spec hides the values of {', '.join(hidden)} (***); fill them in, or make the spec again "
            "with bastion launch --dry_run --show_secrets"
        )
    for field, known in job_spec.unknown_fields(spec.document).items():
        close = difflib.get_close_matches(field.rpartition(".")[2], known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        say(f"bastion: {plain(field[:120])} means nothing to this version, and is ignored{hint}")
    if spec.runner is not None:
        encryption.check_place(spec.runner.proxy, root)
    warn_of(spec)
    client, target = open_client(call, start=True)
    dependencies.check(client, spec)
    check_quota(call, client, spec)
    job_code.ensure_stored(call, client, spec.code_asset_path, spec_file="" if path == "-" else path)
    submitted = client.submit(spec, data)
    report_submitted(call, client, target, submitted, waiting=call.flags.wait)
    return wait_for_submitted(call, client, target, submitted) if call.flags.wait else 0


def _changed(call: Invocation, path: str, data: bytes) -> bytes:
    """The spec with the flags' labels and image; the same bytes without such flags."""
    labels, image = job_options.labels_and_image(call)
    if not labels and not image:
        return data
    document = _document(path, data)
    metadata = document.get("metadata") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(metadata, dict):
        return data  # not valid; its checks follow
    if labels:
        present = metadata.get("labels")
        metadata["labels"] = {**(present if isinstance(present, dict) else {}), **labels}
    if image and not isinstance(document.get("runner"), dict):
        raise Refused("--image applies only to slice jobs, and this spec has no runner; leave --image out")
    if image:
        document["runner"]["image"] = image
    return documents.dumps(document)


def _read(path: str) -> bytes:
    # One byte too many shows that the spec is too long.
    most = limits.SPEC_MAX_BYTES + 1
    if path == "-":
        return sys.stdin.buffer.read(most)
    try:
        with Path(path).open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise Refused(f"cannot read the spec {plain(path)}: {error.strerror}") from error


def _document(path: str, data: bytes) -> object:
    try:
        return documents.loads(data, max_bytes=limits.SPEC_MAX_BYTES)
    except documents.DocumentError as error:
        raise InvalidSpec(f"{plain(path)}: {error}") from error


def _name(path: str, data: bytes) -> str:
    document = _document(path, data)
    name = document.get("name") if isinstance(document, dict) else None
    if not isinstance(name, str) or not name:
        raise InvalidSpec(f'{plain(path)}: a job spec is a JSON object with a "name"; see bastion launch --dry_run')
    return name


SUBMIT = Command(
    summary="Submits a job spec (JSON, version 1) from a file.",
    usage="--spec=FILE [--image=IMAGE] [--label=KEY=VALUE ...] [--wait]",
    details="""`bastion launch --dry_run` makes a spec, but uploads no code. If the code is not in the bucket, submit
        packs this folder as launch does, and uploads it if it is the same code. --dry_run also hides the values of
        variables whose names look secret, and submit refuses a spec with hidden values; --dry_run --show_secrets
        shows them.

        A spec whose metadata.version is one higher than that of the live job of the same name updates that job.
        Otherwise the name must be free.

        --image and --label change the spec before it is submitted; its other labels stay.

        --wait and the exit codes are those of `bastion launch`.""",
    examples=(
        "bastion launch --dry_run -- ./run.sh > job.json",
        "bastion submit --spec=job.json --wait",
        "bastion launch --dry_run --show_secrets --env=API_KEY=... -- ./run.sh | bastion submit --spec=-",
    ),
    takes_output=True,
    define=_define,
    run=_run,
)
