"""`bastion tensorboard JOB...`: the curves of jobs, from the bucket."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client, store_of_outputs
from bastion.cli.output import plain, say
from bastion.core.errors import BastionError, Refused
from bastion.core.plurals import count

if TYPE_CHECKING:
    from bastion.client import Client, JobInfo
    from bastion.client.jobs.goodput import Life
    from bastion.client.tensorboard.mirror import JobMirror

_END_SECONDS = 5.0


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "logdir", None, "The folder for the copies. Default: a temporary one, deleted at the end.", flag_values=values
    )
    flags.DEFINE_integer("port", 6006, "TensorBoard's port.", lower_bound=1, upper_bound=65535, flag_values=values)
    flags.DEFINE_string("host", "127.0.0.1", "The address that TensorBoard listens on.", flag_values=values)
    flags.DEFINE_float("interval_seconds", 10.0, "How often to copy what is new.", lower_bound=1.0, flag_values=values)
    flags.DEFINE_boolean(
        "once", False, "Copy the event files to --logdir and exit, without TensorBoard.", flag_values=values
    )


def _run(call: Invocation) -> int:
    if importlib.util.find_spec("tensorboard") is None:
        raise Refused("TensorBoard is not installed; run: pip install 'bastion[tensorboard]'")
    if call.flags.once and not call.flags.logdir:
        raise Refused("--once needs --logdir, the folder to copy the event files to")
    if not call.flags.once:
        _require_free(call.flags.host, call.flags.port)
    client, _ = open_client(call)
    with _ending_on_signals(), _logdir(call.flags.logdir) as folder:
        boards = [_Board(client, name, folder) for name in dict.fromkeys(call.operands)]
        complete = [board.refresh() for board in boards]
        if call.flags.once:
            return 0 if all(complete) else 1
        return _serve(call, boards, folder)


def _require_free(host: str, port: int) -> None:
    """Raises Refused if TensorBoard could not listen there: it would say so only after all files are copied."""
    try:
        *how, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(*how) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        raise Refused(
            f"TensorBoard cannot listen on {host}, port {port}: {error.strerror}; choose another --port or --host"
        ) from error


@contextlib.contextmanager
def _ending_on_signals() -> Iterator[None]:
    """A closed terminal or SIGTERM ends the process by SystemExit, so that neither TensorBoard nor copies stay."""

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    changed = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}  # nohup
    for number in changed:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in changed.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _logdir(given: str | None) -> Iterator[Path]:
    if given is None:
        with tempfile.TemporaryDirectory(prefix="bastion-tensorboard-") as folder:
            yield Path(folder)
        return
    path = Path(given).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"--logdir={given} cannot be created: {error.strerror}; choose another folder") from error
    yield path


class _Board:
    """One job's copy."""

    def __init__(self, client: Client, name: str, folder: Path) -> None:
        self._client = client
        self._name = name
        self._folder = folder / name
        self._mirror: JobMirror | None = None
        self._uid = ""
        self._told = ""
        client.require(name)  # a name that nobody knows is refused at once

    def refresh(self) -> bool:
        """Copy what is new; return whether all of it could be copied."""
        from bastion.client.jobs.goodput import life_of
        from bastion.client.tensorboard import goodput_scalars
        from bastion.client.tensorboard.mirror import JobMirror

        info = self._client.require(self._name)
        if self._mirror is None or info.uid != self._uid:
            self._uid = info.uid
            self._mirror = JobMirror(store_of_outputs(self._client, info), self._name, info.uid, self._folder)
        known = info.public_keys
        self._mirror.public_keys = known.by_run if known is not None else {}
        life = life_of(info, self._client.clock.now())
        files = self._mirror.refresh(_starts(life))
        if life is not None:
            goodput_scalars.write(self._folder, life)
        self._tell(
            (self._mirror.problem or (f"{plain(self._name)}: {count(files, 'event file')}" if files else _none(info)))
            + (_left_out(self._mirror.unproved) if self._mirror.unproved else "")
        )
        return not self._mirror.problem

    def try_refresh(self) -> None:
        try:
            self.refresh()
        except BastionError as error:  # next time
            self._tell(f"{plain(self._name)}: {plain(error)}")

    def _tell(self, text: str) -> None:
        if text != self._told:
            say(text)
        self._told = text


def _left_out(manifests: int) -> str:
    which = count(manifests, "manifest")
    return f"; left out {which} of outputs: no attempt of this job proves to have written them, so others may have"


def _none(info: JobInfo) -> str:
    from bastion.client.jobs.job_info import Stage

    what = "ended without event files" if info.stage is Stage.COMPLETED else "has stored no event files yet"
    return (
        f"{plain(info.name)} {what}; its command writes them to BASTION_TENSORBOARD_DIR, which bastion launch "
        "--tensorboard sets"
    )


def _starts(life: Life | None) -> list[float]:
    """When the runs of the command began."""
    return [run.running_since for run in life.runs if run.running_since is not None] if life is not None else []


def _serve(call: Invocation, boards: list[_Board], folder: Path) -> int:
    command = [
        *(sys.executable, "-m", "tensorboard.main", f"--logdir={folder}", f"--host={call.flags.host}"),
        *(f"--port={call.flags.port}", f"--reload_interval={max(1, int(call.flags.interval_seconds / 2))}"),
    ]
    with subprocess.Popen(command) as process:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(call.flags.interval_seconds)
                for board in boards:
                    board.try_refresh()
        except KeyboardInterrupt:
            return 0
        finally:
            process.terminate()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


TENSORBOARD = Command(
    summary="Shows the curves of jobs in TensorBoard, also while they run.",
    usage="JOB... [--port=6006] [--logdir=FOLDER [--once]]",
    details="""Copies the TensorBoard event files that the jobs' hosts have stored in the bucket, keeps the copies up to
date, and runs TensorBoard on them until Ctrl-C. Each job is a run of its own; a job that was preempted and resumed is
one curve. The folder bastion of each job has its goodput as scalars.

Launch the jobs with --tensorboard, and let the command write to $BASTION_TENSORBOARD_DIR. Needs
pip install 'bastion[tensorboard]'.""",
    examples=(
        "bastion launch --instance_type=tpu-v4-32 --tensorboard -- python3 train.py",
        "bastion tensorboard my-job other-job",
    ),
    operands=(1, None),
    completes="jobs",
    define=_define,
    run=_run,
)
