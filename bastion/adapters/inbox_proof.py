"""`bastion.ports.InboxProof`: what proves whose an object in an inbox is, by kind of bucket."""

from __future__ import annotations

import os
import pwd
import stat
import time
from collections.abc import Callable
from pathlib import Path

from bastion.core.model.audit import Proof
from bastion.core.model.identity import Identity, Inbox
from bastion.folder_format import inboxes
from bastion.ports import ObjectMeta

# Whether a user may make a hard link to another's file; see proc_sys_fs(5).
_PROTECTED_HARDLINKS = Path("/proc/sys/fs/protected_hardlinks")
_LOOKED_UP_SECONDS = 60.0


class BucketProof:
    """Cloud Storage and S3: only the user may write below `inbox/<user>/`, so nothing is left to check."""

    kind = Proof.INBOX

    def problem(self, user: str, inbox: Inbox, meta: ObjectMeta) -> str:  # noqa: ARG002 - the bucket has checked it
        return ""

    def prepare(self, found: Identity) -> str:  # noqa: ARG002 - an administrator grants the rights
        return ""


class FolderProof:
    """A folder bucket: the file's owner is who wrote it.

    A file with further names, or one that others may change, proves nothing: others could have written it, or could put
    an old one of his there again.

    Args:
        root: The ROOT's folder.
        uid_of: Finds the Unix user of a name; None: there is none.
        hard_links: Of the kernel's setting, by default.
    """

    kind = Proof.FILE_OWNER

    def __init__(
        self,
        root: str,
        *,
        uid_of: Callable[[str], int | None] | None = None,
        hard_links: Path = _PROTECTED_HARDLINKS,
    ) -> None:
        self._root = root
        self._uid_of = uid_of or _look_up
        self._known: dict[str, tuple[float, int | None]] = {}
        self._unsafe = ""
        try:
            protected = hard_links.read_text("ascii").strip() != "0"
        except OSError:
            protected = False
        if not protected:
            self._unsafe = (
                "on this machine a user can make links to files of others, so a file's owner proves nothing; "
                "set the kernel's fs.protected_hardlinks to 1"
            )

    def problem(self, user: str, inbox: Inbox, meta: ObjectMeta) -> str:
        facts = meta.file
        if facts is None:
            return "it is not a file of its own; write it again with the bastion command"
        if self._unsafe:
            return self._unsafe
        if inbox.project:
            return f"a folder bucket proves users, not groups, and {user} is the inbox of a project; use your own"
        uid = inbox.uid if inbox.uid is not None else self._uid(user)
        if uid is None:
            return (
                f"this machine has no user {user}, and config/identity.json names no uid for the inbox; "
                "ask the bastion's administrator"
            )
        if facts.uid != uid and not (facts.uid == os.geteuid() and "/user_states/" in meta.key):
            return f"the file belongs to the user {facts.uid}, not to {user} ({uid}); only {user} may submit here"
        if facts.links != 1:
            return f"the file has {facts.links} names (hard links), so others could put it here again; copy it instead"
        if stat.S_IMODE(facts.mode) & 0o022:
            return (
                f"the file has the mode {stat.S_IMODE(facts.mode):o}, so others could change it; "
                "take write permission from the group and others (chmod go-w), and write it again"
            )
        if not stat.S_IMODE(facts.mode) & 0o040 and os.geteuid() not in (facts.uid, 0):
            return (
                f"the file has the mode {stat.S_IMODE(facts.mode):o}, so the daemon cannot read it; let its group read "
                "it (chmod g+r)"
            )
        return ""

    def prepare(self, found: Identity) -> str:
        if not found.inbox:
            return ""
        inboxes.keep_closed()
        try:
            inboxes.make(self._root, found.users)
        except OSError as error:
            return f"the folders of the inboxes cannot be made: {error}; their users cannot submit"
        return ""

    def _uid(self, user: str) -> int | None:
        now = time.monotonic()
        known = self._known.get(user)
        if known is None or now - known[0] > _LOOKED_UP_SECONDS:
            known = self._known[user] = now, self._uid_of(user)
        return known[1]


def _look_up(user: str) -> int | None:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None
