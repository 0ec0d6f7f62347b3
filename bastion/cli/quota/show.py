"""`bastion quota show`: the quota file in force."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, plain, say
from bastion.cli.quota import file as quota_file
from bastion.cli.quota import quota_root
from bastion.core.errors import EXIT_REFUSED, Refused
from bastion.core.instants import to_rfc3339
from quota import render_check

if TYPE_CHECKING:
    from bastion.client.quota.upload import QuotaFile
    from bastion.core.status.document import QuotaEntry


def _define(values: flags.FlagValues) -> None:
    quota_root.define(values)
    flags.DEFINE_boolean("raw", False, "Print the file itself.", flag_values=values)


def _run(call: Invocation) -> int:
    if call.flags.raw and call.json:
        raise Refused("--raw and --output=json cannot be combined; use only one")
    quota_client, suffix = quota_root.open_quota_client(call)
    present, reported = quota_client.present(), quota_client.in_force()
    shown = present
    if reported is not None and reported.generation and (reported.generation != present.generation):
        # A missing or invalid file leaves the last valid one in force; a valid one is about to be in force.
        shown = present if present.policy is not None else quota_client.former(reported.generation) or present
    state = _state(present, reported)
    where = plain(quota_client.url)
    if not shown.generation:
        raise Refused(f"there is no quota file {where}{state}; upload one: bastion quota upload FILE{suffix}")
    written = to_rfc3339(shown.written_at)
    say(f"{where}, generation {shown.generation}, written {written}{state}")
    if shown.generation != present.generation:
        say("bastion: showing the last valid file, which is in force")
    if call.flags.raw:
        sys.stdout.flush()
        sys.stdout.buffer.write(shown.data)
        sys.stdout.buffer.flush()
        return 0
    if shown.policy is None:
        say(f"bastion: {where}: {plain(shown.problem)}")
        return EXIT_REFUSED
    if call.json:
        emit_json(
            {
                "url": quota_client.url,
                "generation": shown.generation,
                "written_at": written,
                "in_force": None if reported is None else reported.generation == shown.generation,
                "problem": (reported.problem if reported is not None else "") or present.problem or None,
                **quota_file.document(shown.policy),
            }
        )
        return 0
    for line in render_check(shown.policy).splitlines():
        print(plain(line))
    return 0


def _state(present: QuotaFile, reported: QuotaEntry | None) -> str:
    if reported is None:
        return "; no daemon has reported which file is in force"
    if reported.generation and reported.generation == present.generation:
        return "; it is in force"
    if reported.problem:
        return f"; it is not in force: {plain(reported.problem)}"
    return "; the daemon has not read it yet"


SHOW = Command(
    summary="Shows the quota file in force: the pool, and each project's share and members.",
    usage="[--raw] [--quota_root=URL] [--output=json]",
    details="""--raw prints the file itself, to edit it and upload it with bastion quota upload. If the present file is
        not valid, the last valid one is shown, if bastion quota upload has kept it.""",
    examples=("bastion quota show", "bastion quota show --raw > quotas.config"),
    takes_output=True,
    define=_define,
    run=_run,
)
