"""`bastion history JOB`: one line per transition, with its reason."""

from __future__ import annotations

import re

from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client
from bastion.cli.output import emit_json, plain, say

_LINE = re.compile(r"(?P<at>\S+) (?P<uid>[a-z2-7]{10})#(?P<number>[0-9]+) (?P<status>[A-Z]+) (?P<text>.*)")


def _run(call: Invocation) -> int:
    client, _ = open_client(call)
    name = call.operands[0]
    lines = client.history(name)
    if not lines:
        client.require(name)
        say(f"bastion: {plain(name)} has no history yet")
    if call.json:
        emit_json([_document(line) for line in lines])
        return 0
    for line in lines:
        print(plain(line))
    return 0


def _document(line: str) -> dict[str, object]:
    match = _LINE.fullmatch(line)
    if match is None:
        return {"text": line}
    return {**match.groupdict(), "number": int(match["number"])}


HISTORY = Command(
    summary="Shows what happened to a job: one line per change, with its reason.",
    usage="JOB [--output=json]",
    details="""Each line has the time (UTC), the job's uid with the line's number, the status, and the event. If several
        jobs have had the name, all of them are shown; the uid tells them apart.""",
    examples=("bastion history train-1",),
    operands=(1, 1),
    completes="jobs",
    takes_output=True,
    run=_run,
)
