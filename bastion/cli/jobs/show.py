"""`bastion show JOB`: everything about one job on one screen."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client, warn_if_no_daemon
from bastion.cli.jobs import show_screen, why_lines
from bastion.cli.output import emit_json
from bastion.client import Client, Stage
from bastion.client.jobs.details import AttemptRow, Details, details
from bastion.core import secret_signs
from bastion.core.instants import to_rfc3339

_LINES = 5
# Of the JSON document.
_FORMAT = 1


def _run(call: Invocation) -> int:
    client, target = open_client(call)
    info = client.require(call.operands[0])
    if info.stage is not Stage.COMPLETED and not call.json:
        warn_if_no_daemon(client, target)
    found = details(client, info, lines=_LINES)
    if call.json:
        emit_json(_document(client, found))
    else:
        show_screen.write(client, found, target.suffix)
    return 0


def _document(client: Client, found: Details) -> dict[str, Any]:
    info = found.info
    result = info.result.document.get("result") if info.result is not None else None
    spec = secret_signs.masked_document(found.spec.document) if found.spec is not None else None
    if spec is not None:
        spec.pop("result", None)
    return {
        "format": _FORMAT,
        "name": info.name,
        "uid": info.uid or None,
        "stage": info.stage.value,
        "status": info.status.value if info.status else None,
        "state": why_lines.state(info, client.clock.now(), kept_out=client.kept_out(info)),
        "reason": why_lines.headline(client, info),
        "problem": info.problem or None,
        "spec": spec,
        "job": info.entry.model_dump(mode="json") if info.entry is not None else None,
        "attempts": [_attempt(row) for row in found.attempts],
        "nodes": list(found.nodes),
        "host": found.host or None,
        "result": result,
        "meaning": (why_lines.meaning(info.result) or None) if info.result is not None else None,
        "last_lines": why_lines.line_documents(found.last),
        "outputs": asdict(found.outputs) if found.outputs is not None else None,
        "at": to_rfc3339(client.clock.now()),
    }


def _attempt(row: AttemptRow) -> dict[str, Any]:
    fields = {name: getattr(row, name) for name in ("number", "tier", "zone", "cause", "message", "exit_code")}
    instants = {name: getattr(row, name) for name in ("started_at", "running_since", "ended_at")}
    return {
        **fields,
        "failed_worker": row.failed_worker,
        **{name: None if at is None else to_rfc3339(at) for name, at in instants.items()},
        "tries": [each.model_dump(mode="json") for each in row.tries],
    }


SHOW = Command(
    summary="Shows one job on one screen: state, spec, attempts, reason, last lines, outputs.",
    usage="JOB [--output=json]",
    details="""The first line is the job's state. A waiting job has its reason, as in `bastion why`. Then come the
        command and the spec, each attempt with its zone, start, run time, number of tries and end, the last five lines
        of the output, the place of the outputs, and the commands that are useful next. TIER is known of the present
        attempt only. The number of files and bytes is of worker 0's newest complete upload.

        Values of variables that look like secrets are hidden. Only lines and outputs that prove to be of the job's
        hosts are shown; `bastion logs --unproved` shows others.

        In the JSON, format is 1: state (a sentence), reason (null for a job that does not wait), spec, job (its entry
        in the status), attempts, nodes, host, result, meaning (of the exit code), last_lines and outputs (url, files,
        size_bytes). Fields are added without a new format.""",
    examples=("bastion show train-1",),
    operands=(1, 1),
    completes="jobs",
    takes_output=True,
    run=_run,
)
