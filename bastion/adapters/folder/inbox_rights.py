"""`bastion.ports.InboxRights` on a folder bucket: the modes of an inbox's folders, which the daemon's user owns."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterator, Mapping

from bastion.core.bucket import keys
from bastion.core.errors import AccessDenied, Refused, StoreError
from bastion.core.model.identity import Inbox
from bastion.folder_format import inboxes

_KINDS = ("active", "user_states")
_SHARED_MODE = stat.S_ISVTX | stat.S_ISGID | 0o770
_OWN_MODE = stat.S_ISGID | 0o750
# Nobody but the daemon gets through: files that are his can be written whatever their folder's mode.
_SHUT_MODE = 0o700


class FolderInboxRights:
    """The inboxes below a ROOT, `root`; only its owner, and root, can change them."""

    automatic = True

    def __init__(self, root: str) -> None:
        self._root = root

    def refusal(self, inbox: Inbox) -> str:
        if inbox.member:
            return "--member is for buckets of a cloud; in a folder bucket the Unix user counts: leave it out"
        if inbox.project:
            return (
                "in a folder bucket a file's owner proves who wrote it, and no group owns a file; add each user instead"
            )
        return ""

    def granting(self, user: str, inbox: Inbox) -> list[str]:  # noqa: ARG002 - modes name nobody
        own = shlex.quote(self._path(user))
        shared = " ".join(shlex.quote(f"{self._path(user)}/{kind}") for kind in _KINDS)
        top = shlex.quote(f"{self._root}/{keys.INBOX[:-1]}")
        return [f"mkdir --parents {shared}", f"chmod {_OWN_MODE:o} {top} {own}", f"chmod {_SHARED_MODE:o} {shared}"]

    def revoking(self, user: str, inbox: Inbox) -> list[str]:  # noqa: ARG002
        return [f"chmod 0{_SHUT_MODE:o} {shlex.quote(self._path(user))}"]

    def check(self, user: str, inbox: Inbox) -> None:
        self._uid(user, inbox)

    def grant(self, user: str, inbox: Inbox) -> None:
        self.check(user, inbox)
        with self._explained(user):
            inboxes.make(self._root, [user])

    def revoke(self, user: str) -> None:
        with self._explained(user), contextlib.suppress(FileNotFoundError):
            folder = os.open(self._path(user), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.fchmod(folder, _SHUT_MODE)
            finally:
                os.close(folder)

    def findings(self, users: Mapping[str, Inbox]) -> dict[str, list[str]]:
        found = {user: self._looked_at(user, inbox) for user, inbox in users.items()}
        for name in self._names() - users.keys():
            status = os.lstat(self._path(name))
            if not stat.S_ISDIR(status.st_mode) or stat.S_IMODE(status.st_mode) & ~_SHUT_MODE:
                found[name] = [
                    f"others may write there, but the bastion does not know this inbox; bastion admin user add {name}, "
                    "or remove it"
                ]
        return found

    def _looked_at(self, user: str, inbox: Inbox) -> list[str]:
        try:
            return list(self._problems(user, inbox))
        except OSError as error:
            return [f"cannot be looked at: {error}; run this as the user of the daemon"]

    def _problems(self, user: str, inbox: Inbox) -> Iterator[str]:
        try:
            uid = self._uid(user, inbox)
        except Refused as refused:
            yield str(refused)
            return
        again = f"bastion admin user add {user}" + (f" --uid={inbox.uid}" if inbox.uid is not None else "")
        wanted = {self._path(user): _OWN_MODE, **{f"{self._path(user)}/{kind}": _SHARED_MODE for kind in _KINDS}}
        for path, mode in wanted.items():
            try:
                status = os.lstat(path)
            except FileNotFoundError:
                yield f"has no folder {path}; run it again: {again}"
                return
            if not stat.S_ISDIR(status.st_mode):
                yield f"{path} is not a folder (a link?); move it away, and run {again}"
                return
            if stat.S_IMODE(status.st_mode) != mode:
                yield f"{path} has the mode {stat.S_IMODE(status.st_mode):o} instead of {mode:o}; run it again: {again}"
            owner = os.stat(self._root).st_uid  # noqa: PTH116 - of a path as text, as everywhere in a folder bucket
            if status.st_uid not in (owner, 0):
                yield f"{path} belongs to the user {status.st_uid}, not to the daemon's; chown it to {owner}"
        yield from self._outsider(user, uid)
        for kind in _KINDS:
            yield from self._strange_files(f"{self._path(user)}/{kind}", uid)

    def _outsider(self, user: str, uid: int) -> Iterator[str]:
        """Whether he is not in the group of his inbox."""
        group = os.stat(f"{self._path(user)}/{_KINDS[0]}").st_gid  # noqa: PTH116
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:  # a number that another machine knows
            return
        if uid and group not in os.getgrouplist(entry.pw_name, entry.pw_gid):
            with contextlib.suppress(KeyError):
                name = grp.getgrgid(group).gr_name
                yield f"{user} is not in the group {name}, so he cannot submit; usermod -aG {name} {entry.pw_name}"
                return
            yield f"{user} is not in the bucket's group {group}, so he cannot submit"

    def _strange_files(self, folder: str, uid: int) -> Iterator[str]:
        daemon = os.stat(self._root).st_uid  # noqa: PTH116
        with os.scandir(folder) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode):
                    yield f"{entry.path} is not a file (a link?), so it is refused; delete it"
                elif status.st_nlink != 1:
                    yield f"{entry.path} has {status.st_nlink} names (hard links), so it is refused; delete it"
                elif status.st_uid not in (uid, daemon):
                    yield f"{entry.path} belongs to the user {status.st_uid}, so it is refused; delete it"

    def _names(self) -> set[str]:
        try:
            return set(os.listdir(f"{self._root}/{keys.INBOX[:-1]}"))  # noqa: PTH208
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise StoreError(f"the inboxes of {self._root} cannot be listed: {error}") from error

    def _path(self, user: str) -> str:
        return f"{self._root}/{keys.INBOX}{user}"

    def _uid(self, user: str, inbox: Inbox) -> int:
        """Raises Refused if nobody has that name."""
        if inbox.uid is not None:
            return inbox.uid
        try:
            return pwd.getpwnam(user).pw_uid
        except KeyError as error:
            raise Refused(
                f"this machine has no user {user}, so nothing would prove what is his; create the user, or give his "
                "number with --uid"
            ) from error

    @contextlib.contextmanager
    def _explained(self, user: str) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise AccessDenied(
                f"the modes of {self._path(user)} cannot be set: {error}; run this as the user of the daemon"
            ) from error
        except OSError as error:
            raise StoreError(
                f"the inbox {self._path(user)} cannot be made: {error}; move away what is there"
            ) from error
