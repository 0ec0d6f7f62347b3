"""`bastion sweep`: delete orphaned slices (`bastion.daemon.orphans`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, plain, say, table
from bastion.client import Client
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import EXIT_INFRASTRUCTURE, InvalidDocument, NotFound, Refused
from bastion.core.model import daemon_settings
from bastion.core.model.daemon_settings import SettingsError
from bastion.core.model.provisioning import BUILT_IN, Provisioning
from bastion.ports import ObjectStore

# Between the two readings of the bucket: longer than any write of one object.
_LOOK_AGAIN_SECONDS = 1.0


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_boolean(
        "dry_run", False, "Show what would be deleted and why, and delete nothing.", flag_values=values
    )
    flags.DEFINE_enum(
        "slices",
        None,
        ("cloud", "emulated"),
        "Source of slices: the Cloud TPU API with the operator settings (config/daemon.toml), or the emulator on this "
        "machine (default: emulated if the bucket is on this machine, else cloud).",
        flag_values=values,
    )


def _run(call: Invocation) -> int:
    from bastion.cli.connect import open_client
    from bastion.daemon import orphans
    from bastion.user_config.user_file import bastion_home
    from bastion.wiring.daemon import open_slices
    from bastion.wiring.local_home import LocalHome

    client, target = open_client(call)
    settings = _settings(client.store)
    slices = open_slices(target.root, home=LocalHome(bastion_home()), slices=call.flags.slices, settings=settings)
    found = orphans.find_orphans(
        client.store,
        slices,
        settings or BUILT_IN,
        other_zones=_published_zones(client),
        between=lambda: client.clock.sleep(_LOOK_AGAIN_SECONDS),
    )
    rows = []
    failed = bool(found.problems)
    for orphan in found.orphans:
        done, problem = "would be deleted", ""
        if orphan.going:
            done = "is being deleted"
        elif not call.flags.dry_run:
            problem = orphans.delete_orphan(client.store, slices, orphan)
            done = "not deleted" if problem else "deleted"
        failed = failed or bool(problem)
        rows.append((orphan, done, problem))
    if call.json:
        emit_json(_document(found, rows, dry_run=call.flags.dry_run))
    elif rows:
        cells = [
            (each.status.ref.name, each.status.ref.zone or "-", each.status.state.value, done, each.why)
            for each, done, _ in rows
        ]
        print(table(("SLICE", "ZONE", "STATE", "SWEEP", "WHY"), cells), end="")
    for problem in (*found.problems, *(f"{e.status.ref.name} was not deleted: {p}" for e, _, p in rows if p)):
        say(f"bastion: {plain(problem)}")
    if not rows and not found.problems:
        say(f"nothing to sweep: jobs need all {found.current} slices" if found.current else "there are no slices")
    if rows and call.flags.dry_run:
        say("dry run: nothing was deleted")
    return EXIT_INFRASTRUCTURE if failed else 0


def _settings(store: ObjectStore) -> Provisioning | None:
    """The operator settings; None if there are none. Raises Refused if they are not valid: their zones are unknown."""
    try:
        return daemon_settings.load(store.get(keys.DAEMON_SETTINGS, max_bytes=limits.DOCUMENT_MAX_BYTES).data)
    except NotFound:
        return None
    except SettingsError as error:
        raise Refused(f"{keys.DAEMON_SETTINGS} is not valid: {error}; see 'bastion daemon check-config'") from error


def _published_zones(client: Client) -> Sequence[str]:
    """The zones of the last daemon; none if its status cannot be read."""
    try:
        status = client.status()
    except InvalidDocument:
        return ()
    return status.daemon.zones if status is not None else ()


def _document(found: Any, rows: list[tuple[Any, str, str]], *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "leftovers": [
            {
                "name": orphan.status.ref.name,
                "zone": orphan.status.ref.zone,
                "run": orphan.status.run,
                "state": orphan.status.state.value,
                "why": orphan.why,
                "deleted": done == "deleted",
                "problem": problem,
            }
            for orphan, done, problem in rows
        ],
        "needed": found.current,
        "zones": list(found.zones),
        "problems": list(found.problems),
    }


SWEEP = Command(
    summary="Deletes orphaned slices, which no job needs.",
    usage="[--dry_run] [--slices=cloud|emulated] [--output=json]",
    details="""The daemon does this by itself; use this command if no daemon runs, or to list orphans. It deletes only
        slices with this bastion's label and the name of one of its runs, and none that a job needs. It deletes failed
        and preempted slices first, because they use quota until they are deleted.

        It searches the zones of config/daemon.toml, of the jobs, and those that were recently in the operator
        settings. A deletion takes some time; meanwhile the slice is shown as being deleted. Exits with 75 if a slice
        could not be listed or deleted. Requires permission to list and delete TPU nodes and queued resources.""",
    examples=(
        "bastion sweep --dry_run",
        "bastion sweep --root=gs://my-bucket/team-bastion",
    ),
    takes_output=True,
    define=_define,
    run=_run,
)
