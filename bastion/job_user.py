"""The Unix user of a job's commands, who is not the agent's (ADR 62).

Invariants:
* What the agent does to paths that the job can change, it does inside `files`: with the job's rights. A link, or a
  folder that was swapped meanwhile, then leads the agent nowhere that the job cannot go by itself.
* A command never runs as the agent because its user is not there, or the agent may not become it.
* Nothing that runs as the job's user can keep the agent from ending it.
* No child of the agent inherits the rights by which it becomes a user (`give_nothing_to_children`).

Linux only. The rights: being root, or the capabilities of `NEEDED`. File access by another user is setfsuid(2), which
is of one thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import pwd
import re
import resource
import shutil
import signal
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from bastion import processes
from bastion.core.errors import Refused
from bastion.processes import ProcessId

# Numbers of capabilities(7).
NEEDED = {"CAP_CHOWN": 0, "CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7}
# Of accelerators, in /dev: a user who may not open them computes on the CPU.
DEVICES = ("accel*", "vfio/*", "nvidia*", "infiniband/*")
_NUMBERS = re.compile(r"([0-9]{1,10}):([0-9]{1,10})")
# A number that no process has: whoever kills all of a user must not be theirs to kill.
_NOBODY_ELSE = 2**32 - 6
_ID_MAX = 2**32 - 2
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522
_SETRESUID = {"x86_64": 117, "aarch64": 147}
_LIBC = ctypes.CDLL(None, use_errno=True)
_inside = threading.local()


class PopenArguments(TypedDict, total=False):
    """Of `subprocess.Popen`: whom the child runs as."""

    user: int
    group: int
    extra_groups: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUser:
    """A user whose processes are those of one job on this host.

    Attributes:
        name: Of its passwd entry, or its number.
        groups: Its supplementary groups, with those that own the accelerator's devices.
    """

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    @contextlib.contextmanager
    def files(self) -> Iterator[None]:
        """Access files with this user's rights, in this thread.

        Start no thread inside: it would keep them. A process that is started inside runs as the agent.
        """
        if getattr(_inside, "user", None) is not None:
            assert _inside.user == self.uid, "one thread accesses files as one user"
            yield
            return
        try:
            _set_file_ids(self.uid, self.gid)
            _inside.user = self.uid
            yield
        finally:
            _inside.user = None
            _set_file_ids(os.geteuid(), os.getegid())

    def popen_arguments(self) -> PopenArguments:
        return PopenArguments(user=self.uid, group=self.gid, extra_groups=self.groups)

    def processes(self) -> list[ProcessId]:
        """All live processes of this user: whatever a command does, it cannot leave them."""
        return processes.of_user(self.uid)

    def kill_all(self) -> None:
        """Kill all processes of this user at once: one by one, those would escape that go on forking.

        None of them can stop or kill the one who does it, because only its effective user is theirs. Does nothing if
        this process may not become the user, or can start no thread.
        """
        killer = threading.Thread(target=_kill_all_of, args=(self.uid,), name="kill-all-of-user", daemon=True)
        with contextlib.suppress(RuntimeError):
            killer.start()
            killer.join()


def kill_all_from_a_child(user: JobUser) -> None:
    """`kill_all` for a process that then becomes the user: it must have no other thread."""
    child = os.fork()
    if not child:
        try:
            _kill_all_of(user.uid)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def files_of(user: JobUser | None) -> contextlib.AbstractContextManager[None]:
    """`user.files()`, or nothing where the command runs as the agent."""
    return contextlib.nullcontext() if user is None else user.files()


def popen_arguments(user: JobUser | None) -> PopenArguments:
    """`user.popen_arguments()`, or nothing for the agent's own user."""
    return PopenArguments() if user is None else user.popen_arguments()


def by_numbers(uid: int, gid: int) -> JobUser:
    """The user of a file that only it owns."""
    return JobUser(name=str(uid), uid=uid, gid=gid, groups=(gid,))


def remove(folder: Path, user: JobUser | None) -> None:
    """Remove a folder in one of the agent's that belongs to the user, whatever the user did in it.

    What cannot be removed stays: another user's files that an elevated program left, an immutable one, or what is
    deeper than Python's calls.
    """
    with files_of(user), contextlib.suppress(RecursionError):
        if user is not None:
            _reopen(folder)
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.rmdir()  # in a folder of the agent's


def resolve(text: str) -> JobUser:
    """The user of `NAME` or `UID:GID` (which needs no passwd entry). Raises Refused."""
    numbers = _NUMBERS.fullmatch(text)
    try:
        entry = pwd.getpwuid(int(numbers[1])) if numbers else pwd.getpwnam(text)
    except (KeyError, ValueError, OverflowError):
        entry = None
    if entry is None and numbers is None:
        raise Refused(
            f"this host has no user {text!r} to run commands as; create it (`useradd --system {text}`), or set "
            "job_user to an existing user or to UID:GID"
        )
    uid, gid = (int(numbers[1]), int(numbers[2])) if numbers else (entry.pw_uid, entry.pw_gid)  # type: ignore[union-attr]
    if not (0 < uid <= _ID_MAX and 0 < gid <= _ID_MAX) or uid == os.geteuid():
        raise Refused(
            f"commands cannot run as {text}: it is root, the agent itself, or no user; set job_user to a user of their "
            "own"
        )
    name = str(uid) if entry is None else entry.pw_name
    own = [] if entry is None else os.getgrouplist(name, gid)
    return JobUser(name=name, uid=uid, gid=gid, groups=tuple(sorted({gid, *own, *_device_groups()} - {0})))


def require_rights(user: JobUser) -> None:
    """Raise Refused unless this process may run commands as that user."""
    missing = missing_rights()
    if missing:
        raise Refused(
            f"the agent cannot run commands as user {user.name}: it is not root and has no {', '.join(missing)}; start "
            "it as root or with these capabilities (AmbientCapabilities= of its systemd unit)"
        )


def missing_rights() -> list[str]:
    """Names of the needed capabilities that this process has not."""
    try:
        status = Path("/proc/self/status").read_text("utf-8", "replace")
    except OSError:
        status = ""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    effective = int(found[1], 16) if found else 0
    return [name for name, number in sorted(NEEDED.items()) if not effective >> number & 1]


def give_nothing_to_children() -> None:
    """Keep the rights to this process. Call once, in the main thread, before there is any other."""
    _LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    _set_inheritable(0)
    os.setgroups([])
    if os.geteuid() == 0:
        with contextlib.suppress(OSError, ValueError):
            # VFIO pins the memory of a TPU's programs.
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def limit_processes(most: int) -> None:
    """Let no user that this process's children run as have more processes and threads. Does not limit root."""
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


@contextlib.contextmanager
def rights_for_children() -> Iterator[None]:
    """Let programs that this thread starts become users, too: only this package's own. Nothing for root."""
    if os.geteuid() == 0:
        yield
        return
    try:
        _set_inheritable(sum(1 << number for number in NEEDED.values()))
        for number in NEEDED.values():
            if _LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number, 0, 0):
                raise OSError(ctypes.get_errno(), "the agent cannot hand on its right to become users")
        yield
    finally:
        _LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
        _set_inheritable(0)


def become(user: JobUser) -> None:
    """Make this whole process the user's, for good, with none of the rights that it had before."""
    os.setgroups([])
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    give_up_rights()


def give_up_rights() -> None:
    """Drop the capabilities of a process that is not root; programs that it starts get none either."""
    if os.geteuid() == 0:
        return
    _LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    if _LIBC.capset(header, (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "the process cannot give up its capabilities")


def _kill_all_of(uid: int) -> None:
    """Kill all processes that the user may kill. Ends this thread's rights: call it in one of its own.

    kill(2) with -1 reaches all that the caller may signal, in one step of the kernel. The caller's real and saved user
    decide who may signal it, and are nobody's, where the namespace has that number.
    """
    number = _SETRESUID.get(platform.machine())
    if number is None or not uid:
        return
    for other in (_NOBODY_ELSE, uid):
        # The system call is of one thread, other than the function of the C library.
        if _LIBC.syscall(number, ctypes.c_uint(other), ctypes.c_uint(uid), ctypes.c_uint(other)) == 0:
            break
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _LIBC.capset(header, (ctypes.c_uint32 * 6)())
    sets = (ctypes.c_uint32 * 6)(*[1] * 6)
    # With any right of the agent's left, it would end the whole machine.
    if _LIBC.capget(header, sets) or any(sets) or os.getresuid() not in {(_NOBODY_ELSE, uid, _NOBODY_ELSE), (uid,) * 3}:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(-1, signal.SIGKILL)


def _reopen(folder: Path) -> None:
    """Undo that folders were closed to their own user."""
    with contextlib.suppress(OSError):
        folder.chmod(0o700)
    for path, names, _ in os.walk(folder):  # looks into a folder after it was reopened here
        for each in (Path(path, name) for name in names):
            with contextlib.suppress(OSError):
                if not each.is_symlink() and each.stat().st_mode & 0o700 != 0o700:
                    each.chmod(0o700)


def _set_inheritable(bits: int) -> None:
    """Set the capabilities that programs of this thread may inherit. Raises OSError."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable, low and high bits
    if _LIBC.capget(header, sets) == 0:
        sets[2], sets[5] = bits, 0
        if _LIBC.capset(header, sets) == 0:
            return
    number = ctypes.get_errno()
    raise OSError(number, f"the agent's capabilities cannot be kept from its children: {os.strerror(number)}")


def _set_file_ids(uid: int, gid: int) -> None:
    """Raises OSError: the calls tell nothing, so the result is read."""
    _LIBC.setfsgid(ctypes.c_uint(gid))
    _LIBC.setfsuid(ctypes.c_uint(uid))
    nobody = ctypes.c_uint(-1)
    now = ctypes.c_uint(_LIBC.setfsuid(nobody)).value, ctypes.c_uint(_LIBC.setfsgid(nobody)).value
    if now != (uid, gid):
        raise PermissionError(f"file access as user {uid}, group {gid} is not permitted to this process")


def give_devices(user: JobUser) -> None:
    """Let the user open the accelerator's devices, where only root may. Needs root."""
    for path in _devices():
        with contextlib.suppress(OSError):
            found = path.stat()
            shared = found.st_mode & 0o006 == 0o006
            if not (shared or found.st_gid in user.groups) and found.st_mode & 0o600 == 0o600:
                os.chown(path, -1, user.gid)
                path.chmod(stat.S_IMODE(found.st_mode) | 0o060)


def _devices() -> list[Path]:
    found = []
    for path in (path for pattern in DEVICES for path in Path("/dev").glob(pattern)):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(path.lstat().st_mode):
                found.append(path)
    return found


def _device_groups() -> set[int]:
    found = set()
    for path in _devices():
        with contextlib.suppress(OSError):
            found.add(path.stat().st_gid)
    return found
