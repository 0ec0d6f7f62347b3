"""The provisioner for jobs without a slice: each gang is one detached agent process on this machine.

A gang is a folder `<directory>/<gang name>/`, which appears complete, in one rename:

    node.json      the request, the marker, who created it (written before anything is started)
    arguments.json what the agent reads
    process        the agent's process id and start time, once started
    deleting       the gang is being deleted; its processes are being ended
    agent.log      what the agent itself printed
    state/         the agent's local state; `state/<run>.0/job/` is its command's

Invariants:

* No agent without a folder, and at most one per folder: only the creator of the folder starts the agent, and an agent
  without a folder finds no arguments and ends.
* A folder is removed only after every process with its marker, or of its user, is gone.
* A user is one gang's (`bastion_host_users`), if commands have users of their own.
* Process ids of another boot, machine or process namespace are meaningless; such a gang is lost, and deleting it
  removes its folder. The daemon waits out a command that may still run elsewhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bastion import processes
from bastion.adapters import bastion_host_users as host_users
from bastion.core import limits
from bastion.core.bucket import protocol
from bastion.core.bucket.protocol import AgentArguments
from bastion.core.errors import GangExists, ProvisionerRefused, ProvisionerUnavailable, Stockout
from bastion.core.model.bastion_host_jobs import HostJobsMode
from bastion.core.model.gangs import GangRef, GangRequest, GangState, GangStatus
from bastion.job_user import JobUser
from bastion.processes import ProcessId

MARKER = "BASTION_VM"
# The agent ends its command and reports within this time of SIGTERM.
DELETE_GRACE_SECONDS = 10.0
# How long a user is not tried again whose remains could not be removed.
_SPOILED_SECONDS = 600.0
_LAST_OUTPUT_BYTES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gang:
    """`node.json`."""

    node_id: str
    bastion: str
    run: str
    token: str
    marker: str
    host_identity: str
    creator: str
    user: str = ""  # whom its command runs as; empty: the agent's user


class BastionHostProvisioner:
    """Runs agents on this machine, each as a gang of one host.

    Args:
        directory: The gangs' folders; for this bastion only, on a local disk.
        interpreter: Python that has this package.
        max_gangs: Limit; beyond it `create` raises `Stockout`.
        delete_grace_seconds: Between SIGTERM and SIGKILL when deleting.
        host_identity: Of this machine and boot; see `bastion.processes.host_identity`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        interpreter: str = sys.executable,
        max_gangs: int = limits.BASTION_HOST_JOBS_MAX + limits.CLEANUP_COMMANDS_MAX,
        delete_grace_seconds: float = DELETE_GRACE_SECONDS,
        host_identity: str | None = None,
    ) -> None:
        self._directory = directory
        self._interpreter = interpreter
        self._max_gangs = max_gangs
        self._grace = delete_grace_seconds
        self._mode = HostJobsMode.AS_DAEMON
        self._users: Sequence[JobUser] = ()
        # By user whose remains could not be removed: when that was tried, and why.
        self._spoiled: dict[int, tuple[float, str]] = {}
        self._identity = host_identity or processes.host_identity()
        self._me = str(ProcessId.of(os.getpid()))
        self._children: list[subprocess.Popen[bytes]] = []
        self._deleting: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()
        # A killed daemon may have left a partial removal, which may be what fills the disk.
        gone = list(directory.glob(".gone-*"))
        if gone:
            threading.Thread(target=host_users.remove_gangs, args=(gone,), name="remove-gone", daemon=True).start()

    def run_commands(self, mode: HostJobsMode, users: Sequence[JobUser]) -> None:
        """Set how the commands of new gangs run. `users`: with OWN_USER."""
        self._mode, self._users = mode, users

    def create(self, request: GangRequest) -> None:
        if self._mode is HostJobsMode.OFF:
            raise ProvisionerRefused("jobs without a slice and cleanup commands are off on this bastion")
        if request.accelerator_type:
            raise ProvisionerRefused(
                f"{request.ref.name} asks for {request.accelerator_type}, but the bastion's own host has no accelerator"
            )
        name = request.ref.name
        if not name or name.startswith(".") or "/" in name:
            raise ProvisionerRefused(f"{name!r} is not a valid gang name")
        try:
            self._create(request)
        except OSError as error:
            raise ProvisionerUnavailable(f"{self._directory}: {name} was not created: {error}") from error

    def failure(self, ref: GangRef) -> Exception | None:  # noqa: ARG002 - the port's signature
        """Always None: creation fails at once or not at all."""
        return None

    def get(self, ref: GangRef) -> GangStatus | None:
        self._reap()
        return self._look(self._directory / ref.name)

    def list(self, zone: str = "") -> Sequence[GangStatus]:  # noqa: ARG002 - the port's signature
        self._reap()
        try:
            folders = sorted(path for path in self._directory.iterdir() if not path.name.startswith("."))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ProvisionerUnavailable(f"{self._directory} cannot be listed: {error}") from error
        return [status for status in map(self._look, folders) if status is not None]

    def delete(self, ref: GangRef) -> None:
        if not self._directory.is_dir():
            return
        try:
            with self._locked():
                gang = self._read(self._directory / ref.name)
                if gang is None:
                    return
                # On disk, so that a restarted daemon continues. On a full disk only this daemon does.
                with contextlib.suppress(OSError):
                    (self._directory / ref.name / "deleting").touch()
        except OSError as error:
            raise ProvisionerUnavailable(f"{ref.name} could not be marked as deleted: {error}") from error
        self._end_in_background(gang)

    def _create(self, request: GangRequest) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = self._directory / request.ref.name
        if folder.exists():
            raise GangExists(f"{request.ref.name} already exists on the bastion's host")
        running = sum(1 for path in self._directory.iterdir() if not path.name.startswith("."))
        if running >= self._max_gangs:
            raise Stockout(f"{running} commands run on the bastion host; the maximum is {self._max_gangs}")
        gang = _Gang(
            node_id=request.ref.name,
            bastion=request.bastion,
            run=request.run,
            token=request.token,
            # Unique, so that two bastions on one machine never end each other's processes.
            marker=f"{request.ref.name}.{secrets.token_hex(4)}",
            host_identity=self._identity,
            creator=self._me,
        )
        with contextlib.ExitStack() as held:
            gang, user = self._place(gang, folder, request.agent_arguments, held)
            try:
                if user is not None:
                    self._make_ready(user, folder)
                self._start(gang, folder)
            except OSError:
                # Also if only recording the process failed: an agent that nobody can find must not run.
                processes.end_marked(MARKER, gang.marker, grace_seconds=0)
                self._remove(gang)
                raise

    def _place(
        self, gang: _Gang, folder: Path, arguments: str, held: contextlib.ExitStack
    ) -> tuple[_Gang, JobUser | None]:
        """Make the gang's folder, with a user that is free, whose lock `held` keeps. Raises OSError, Stockout."""
        user, new = None, self._directory / f".new-{gang.marker}"
        try:
            with self._locked():
                if self._mode is HostJobsMode.OWN_USER:
                    user, lock = self._free_user()
                    held.callback(os.close, lock)
                    gang = replace(gang, user=host_users.text_of(user))
                _write_folder(new, gang, arguments)
                # Atomic; fails if a folder with content exists.
                new.rename(folder)
                if user is not None:
                    host_users.share(lock)
        except OSError as error:
            shutil.rmtree(new, ignore_errors=True)
            if folder.exists():
                raise GangExists(f"{gang.node_id} already exists on the bastion's host") from error
            raise
        return gang, user

    def _free_user(self) -> tuple[JobUser, int]:
        """A user for a new gang, and the descriptor that holds its lock. Raises Stockout, OSError."""
        now = time.monotonic()
        self._spoiled = {uid: spoiled for uid, spoiled in self._spoiled.items() if now - spoiled[0] < _SPOILED_SECONDS}
        users = [user for user in self._users if user.uid not in self._spoiled]
        for user in host_users.free(users, host_users.taken(self._directory)):
            lock = host_users.locked(self._directory, user, alone=True)
            if lock is not None:
                return user, lock
        why = "".join(f"; {problem}" for _, problem in [*self._spoiled.values()][:1])
        raise Stockout(f"all {len(self._users)} users that commands run as on the bastion host are in use{why}")

    def _make_ready(self, user: JobUser, folder: Path) -> None:
        """Remove what an earlier command of that user left, and let it get to its own folder. Raises OSError."""
        problem = host_users.clear(user)
        if problem:
            self._spoiled[user.uid] = time.monotonic(), problem  # the next creation takes another one
            raise OSError(problem)
        host_users.open_way([*self._directory.parents, self._directory, folder, folder / "state"])

    def _start(self, gang: _Gang, folder: Path) -> None:
        environment = os.environ | {MARKER: gang.marker, "BASTION_STATE_DIR": str(folder / "state")}
        log_file = os.open(folder / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(log_file, "ab") as log:
            child = subprocess.Popen(
                [self._interpreter, "-m", "bastion.wiring.agent", f"--arguments-file={folder / 'arguments.json'}"],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        with self._lock:
            self._children.append(child)
        identity = ProcessId.of(child.pid)
        temporary = folder / "process.new"
        temporary.write_text(str(identity) if identity else f"{child.pid}:0", "utf-8")
        temporary.replace(folder / "process")

    def _look(self, folder: Path) -> GangStatus | None:
        """Return the gang in that folder; None if there is none."""
        gang = self._read(folder)
        if gang is None:
            return None
        state, message = self._state(gang)
        # A folder that is being removed has no recorded process, like one whose agent has not started.
        if self._read(folder) != gang:
            return None
        return GangStatus(
            ref=GangRef(name=gang.node_id),
            run=gang.run,
            token=gang.token,
            state=state,
            message=message,
            labels={"bastion": gang.bastion, "bastion-run": gang.run},
        )

    def _state(self, gang: _Gang) -> tuple[GangState, str]:
        folder = self._directory / gang.node_id
        if (folder / "deleting").exists():
            self._end_in_background(gang)
            return GangState.DELETING, ""
        if gang.host_identity != self._identity:
            return GangState.LOST, f"it was started on another machine or before a reboot ({gang.host_identity})"
        process = self._process(folder)
        if process is None:
            return self._state_before_start(gang)
        if process.alive:
            return GangState.READY, ""
        if any(folder.glob("state/*/reported")):
            # Its last report is in the bucket, so its end is not a loss.
            return GangState.READY, "the agent has reported the command's end, and ended"
        return GangState.LOST, f"the agent died{self._last_output(folder)}"

    def _state_before_start(self, gang: _Gang) -> tuple[GangState, str]:
        """Return the state of a folder without a recorded process: its creator is active, or died."""
        if processes.marked(MARKER, gang.marker):
            return GangState.READY, ""
        creator = ProcessId.parse(gang.creator)
        if creator is not None and creator.alive:
            return GangState.CREATING, ""
        return GangState.LOST, "the daemon died before it started the agent"

    def _end_in_background(self, gang: _Gang) -> None:
        with self._lock:
            running = self._deleting.get(gang.marker)
            if running is not None and running.is_alive():
                return
            thread = threading.Thread(target=self._end, args=(gang,), name=f"delete-{gang.node_id}", daemon=True)
            self._deleting[gang.marker] = thread
            thread.start()

    def _end(self, gang: _Gang) -> None:
        user = host_users.find(gang.user)
        if user is None:
            self._end_all(gang, None)
            return
        with host_users.ending(self._directory, user) as is_held:
            # Another daemon may have removed it while this one was frozen: then the user may be another gang's.
            if is_held and self._read(self._directory / gang.node_id) == gang:
                self._end_all(gang, user)

    def _end_all(self, gang: _Gang, user: JobUser | None) -> None:
        # Nothing from another boot can run under this marker here; the search then finds nothing.
        others = user.processes if user is not None else list
        if not processes.end_marked(MARKER, gang.marker, grace_seconds=self._grace, also=others):
            if user is not None:
                host_users.clear(user)
            return  # still DELETING; the next look tries again
        self._reap()
        self._remove(gang)
        with self._lock:
            self._deleting.pop(gang.marker, None)

    def _remove(self, gang: _Gang) -> None:
        """Make the folder disappear at once, then delete its content."""
        folder = self._directory / gang.node_id
        gone = self._directory / f".gone-{gang.marker}"
        try:
            with self._locked():
                # Another client may have removed it and reused the name.
                if self._read(folder) == gang:
                    folder.rename(gone)
        except OSError:
            return  # still DELETING; the next look tries again
        host_users.remove_gangs([gone])

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the directory against renames by other processes."""
        descriptor = os.open(self._directory / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _reap(self) -> None:
        """Reap ended agents, which are children of this process."""
        with self._lock:
            self._children = [child for child in self._children if child.poll() is None]

    @staticmethod
    def _read(folder: Path) -> _Gang | None:
        try:
            return _Gang(**json.loads((folder / "node.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            # Folders appear complete, so this one is not ours or is being removed.
            return None

    @staticmethod
    def _process(folder: Path) -> ProcessId | None:
        try:
            return ProcessId.parse((folder / "process").read_text("utf-8"))
        except OSError:
            return None

    @staticmethod
    def _last_output(folder: Path) -> str:
        try:
            text = (folder / "agent.log").read_bytes()[-_LAST_OUTPUT_BYTES:].decode("utf-8", "replace").strip()
        except OSError:
            return ""
        return f"; its last output: {text.splitlines()[-1]}" if text else ""


def _write_folder(folder: Path, gang: _Gang, arguments: str) -> None:
    folder.mkdir(mode=0o700)
    (folder / "state").mkdir(mode=0o700)
    if gang.user:
        parsed = protocol.read(AgentArguments, arguments.encode())
        arguments = parsed.model_copy(update={"job_user": gang.user}).to_bytes().decode()
    # Both contain the run's token.
    _write_private(folder / "arguments.json", arguments)
    # Daemons before users of their own read gangs without one.
    _write_private(folder / "node.json", json.dumps({name: value for name, value in asdict(gang).items() if value}))


def _write_private(path: Path, text: str) -> None:
    """Write a new file that only this user can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
