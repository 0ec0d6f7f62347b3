"""`bastion admin inbox enable|disable|status`: where a bastion takes specs and requests from."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from absl import flags

from bastion.cli.admin import identity_file
from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client
from bastion.cli.output import emit_json, plain, say
from bastion.cli.parsing import did_you_mean
from bastion.core.bucket import keys
from bastion.core.errors import AccessDenied, Refused
from bastion.core.model.identity import Identity
from bastion.core.model.mode import Mode
from bastion.core.plurals import count
from bastion.wiring.roots import Root

if TYPE_CHECKING:
    from bastion.client import Client

_ACTIONS = ("enable", "disable", "status")
_NAMED = 10


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_boolean("dry_run", False, "Show what would change, and change nothing.", flag_values=values)


def _run(call: Invocation) -> int:
    action = call.operands[0]
    if action not in _ACTIONS:
        raise Refused(f"{plain(action)!r} is none of {', '.join(_ACTIONS)}{did_you_mean(action, _ACTIONS)}")
    client, target = open_client(call)
    present, generation = identity_file.read(client)
    if action == "status":
        return _show(call, client, present)
    wanted = Mode.INBOX if action == "enable" else Mode.OPEN
    if present.mode is wanted:
        say(f"{keys.IDENTITY} says {wanted.value} already")
        return 0
    _check(client, wanted)
    if call.flags.dry_run:
        say("dry run: nothing was changed")
        return 0
    changed = present.model_copy(update={"mode": wanted})
    if wanted is Mode.INBOX:
        _make_folders(target.root, changed)
        again, generation = identity_file.read(client)  # modes belong to a file's generation
        if again != present:
            raise Refused(identity_file.CHANGED)
    identity_file.write(client, changed, generation)
    if wanted is Mode.INBOX and target.root.local and changed.users:
        named = [f"{name}{'' if each.uid is None else f' (uid {each.uid})'}" for name, each in changed.users.items()]
        say(f"whose files count: {_named(named)}; check them, because in mode open everybody could add inboxes")
    say(f"the mode is {wanted.value} as soon as the daemon reads it, within five minutes: bastion admin inbox status")
    return 0


def _show(call: Invocation, client: Client, present: Identity) -> int:
    status = client.status()
    in_force = status.mode if status is not None else Mode.OPEN.value
    if call.json:
        emit_json({"mode": present.mode.value, "in_force": in_force, "inboxes": sorted(present.users)})
        return 0
    source = "inbox/<user>/" if in_force == Mode.INBOX else f"{keys.JOBS_ACTIVE}, which everybody may write"
    print(f"mode {in_force}: jobs come from {source}")
    if present.mode != in_force:
        print(f"{keys.IDENTITY} says {present.mode.value}; the daemon has not read it yet")
    for name, inbox in sorted(present.users.items()):
        whose = f"project {inbox.project}" if inbox.project else "user"
        uid = f", uid {inbox.uid}" if inbox.uid is not None else ""
        print(plain(f"{name}: {whose} {inbox.member}".rstrip() + uid))
    return 0


def _check(client: Client, wanted: Mode) -> None:
    """Say what the change does to jobs, or refuse it."""
    if wanted is Mode.INBOX:
        waiting, live = client.unread(), client.entries(again=False)
        if live:
            say(f"{count(len(live), 'job')} {'goes' if len(live) == 1 else 'go'} on unchanged")
        if waiting:
            say(f"{_named(waiting)}: not accepted yet, and refused from now on; submit them again afterwards")
        return
    states = {meta.key.removeprefix(keys.JOBS_STATES) for meta in client.store.list(keys.JOBS_STATES)}
    listed = (meta.key.removeprefix(keys.JOBS_ACTIVE) for meta in client.store.list(keys.JOBS_ACTIVE))
    foreign = [name for name in listed if name and name not in states]
    if foreign:
        raise Refused(
            f"{_named(foreign)} in {keys.JOBS_ACTIVE} would begin as jobs, although nobody knows whose they are; "
            "look at them and delete them first"
        )


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return plain(f"{', '.join(names[:_NAMED])}{more}")


def _make_folders(root: Root, found: Identity) -> None:
    """In a folder bucket, modes prove who wrote; only the folder's owner can set them."""
    if not root.local:
        return
    from bastion.folder_format import inboxes

    if not os.path.isdir(root.url):  # noqa: PTH112 - of a path as text, as everywhere in a folder bucket
        raise Refused(f"there is no bastion at {plain(root.url)} yet; start its daemon first, or correct --root")
    try:
        foreign = inboxes.close(root.bucket, root.bastion)
        inboxes.make(root.url, found.users)
    except PermissionError as error:
        raise AccessDenied(
            f"the modes of {plain(root.url)} cannot be set: {error}; run this as the user of the daemon"
        ) from error
    for path in foreign[:_NAMED]:
        if path != f"{root.url}/{keys.IDENTITY}":  # it is written anew
            say(f"bastion: {plain(path)} belongs to another user, who may still change it; use chown or delete it")


INBOX = Command(
    summary="Changes or shows where a bastion takes specs and requests from.",
    usage="enable|disable|status [--dry_run]",
    details="""With inboxes, a bastion takes jobs and requests from inbox/<user>/ only, where the bucket proves who
        wrote them; in mode open, the default, from jobs/active/ and jobs/user_states/, which everybody may write.
        Jobs that were accepted before go on. Specs that were not are refused, with a reason that `bastion why` shows.

        disable is refused while jobs/active/ has specs that are no jobs.""",
    examples=("bastion admin inbox enable", "bastion admin inbox status"),
    operands=(1, 1),
    takes_output=True,
    define=_define,
    run=_run,
)
