"""`bastion debug replay|diff FILE`: one recorded tick of a daemon, decided again."""

from __future__ import annotations

import difflib
import gzip
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, plain, say
from bastion.core.errors import EXIT_REFUSED, Refused

if TYPE_CHECKING:
    from bastion.core.recorded_tick import RecordedTick

_FILE_MAX_BYTES = 1024 * 1024 * 1024
_DETAILS = """A daemon keeps such files under ticks/ in its $BASTION_HOME, with record_ticks = N in the operator
    settings (config/daemon.toml). A file holds everything that the tick's decision depends on; environment values and
    run tokens are removed."""


def _read(path: str) -> RecordedTick:
    from bastion.core import recorded_tick
    from bastion.core.errors import InvalidDocument

    try:
        with gzip.open(Path(path), "rb") as stream:
            data = stream.read(_FILE_MAX_BYTES + 1)
        if len(data) > _FILE_MAX_BYTES:
            raise Refused(f"{plain(path)} has more than {_FILE_MAX_BYTES} bytes; this is not a recorded tick")
        return recorded_tick.read(data)
    except OSError as error:
        raise Refused(f"cannot read {plain(path)}: {error.strerror or 'it is not a gzip file'}") from error
    except (EOFError, zlib.error, InvalidDocument) as error:
        raise Refused(f"cannot read {plain(path)}: {plain(error)}") from error


def _decide(recorded: RecordedTick) -> list[str]:
    from bastion.core.recorded_tick import describe
    from bastion.core.tick import decide

    return describe(decide(recorded.given))


def _replay(call: Invocation) -> int:
    recorded = _read(call.operands[0])
    lines = _decide(recorded)
    if call.json:
        emit_json({"version": recorded.version, "tick": recorded.given.number, "decided": lines})
        return 0
    for line in lines:
        print(plain(line))
    return 0


def _diff(call: Invocation) -> int:
    recorded = _read(call.operands[0])
    lines = _decide(recorded)
    changes = [
        line
        for line in difflib.unified_diff(recorded.decided, lines, lineterm="", n=0)
        if not line.startswith(("---", "+++", "@@"))
    ]
    if call.json:
        emit_json({"version": recorded.version, "tick": recorded.given.number, "changes": changes})
    else:
        for line in changes:
            print(plain(line))
        if not changes:
            say(f"bastion: this version decides the same as version {plain(recorded.version)}")
    return EXIT_REFUSED if changes else 0


REPLAY = Command(
    summary="Decides a recorded tick of a daemon again, and shows every decision.",
    usage="FILE",
    details=_DETAILS,
    examples=('bastion debug replay "$BASTION_HOME"/ticks/*/tick-00000001-000000042.json.gz',),
    operands=(1, 1),
    takes_target=False,
    takes_output=True,
    run=_replay,
)

DIFF = Command(
    summary="Shows which decisions on a recorded tick differ in this version.",
    usage="FILE",
    details=_DETAILS
    + """

    Lines with - are the recorded decisions, lines with + those of this version. Exits with 0 if there are none, with 64
    if there are some.""",
    examples=('bastion debug diff "$BASTION_HOME"/ticks/*/tick-00000001-000000042.json.gz',),
    operands=(1, 1),
    takes_target=False,
    takes_output=True,
    run=_diff,
)
