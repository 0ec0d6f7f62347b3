"""`bastion exec` on hosts that are processes of this machine: environment, folder, streams, signals, a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.core.bucket import keys
from bastion.core.bucket.markers import COMMAND_MARKER
from bastion.core.model import job_record
from bastion.core.model.job_record import JobRecord
from bastion.wiring.local_home import LocalHome
from bastion.wiring.local_starter_quota import starter_quota
from bastion.wiring.roots import open_root
from tests.support.local_root import USER, LocalRoot
from tests.support.waiting import until

pytestmark = pytest.mark.e2e
# The command has begun, but may not have made its file yet.
LOOK = "until [ -e started ]; do sleep 0.05; done; echo $BASTION_HOST_INDEX; pwd; ls"
BASTION = (sys.executable, "-m", "bastion.cli.main")


@pytest.fixture(scope="module")
def root(home: LocalHome, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRoot]:
    """A bastion on which the job `two` runs on two hosts, and `one` on the bastion itself."""
    url = str(tmp_path_factory.mktemp("root") / "e2e-bastion")
    root = LocalRoot(home=home, url=url, store=open_root(url))
    root.store.put("project-quotas/project-quotas.config", starter_quota(USER), generation=0)
    root.submit("two", "MINE=$BASTION_HOST_INDEX; touch started; sleep 600", instance_type="tpu-v4-16")
    root.submit("one", "sleep 600", env_vars={"SHOWN": "a 'b'"})
    daemon = root.start_daemon()
    until(lambda: runs(root, "one") and runs(root, "two"))
    yield root
    for name in ("one", "two"):
        root.store.put(f"jobs/user_states/{name}", b'{"status": "CANCELLING"}', generation=0)
    until(lambda: not [*root.store.list("jobs/states/")])
    daemon.kill()
    daemon.wait()


def runs(root: LocalRoot, name: str) -> bool:
    """Whether the command runs on all hosts of the job."""
    record = (
        job_record.read(root.store.get(keys.state(name)).data, name=name) if root.store.head(keys.state(name)) else 0
    )
    attempt = record.attempt if isinstance(record, JobRecord) else None
    return attempt is not None and attempt.running_since is not None


def command(root: LocalRoot, *arguments: str) -> tuple[str, ...]:
    return (*BASTION, "exec", f"--root={root.url}", *arguments)


def enter(root: LocalRoot, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command(root, *arguments), input=stdin, capture_output=True, timeout=60, check=False)


def test_a_command_has_the_environment_and_the_folder_of_its_host(root: LocalRoot) -> None:
    hosts = [enter(root, "two", f"--worker={n}", "--", "sh", "-c", LOOK) for n in (0, 1)]
    assert [(done.returncode, done.stderr) for done in hosts] == [(0, b"")] * 2
    shown = [done.stdout.decode().splitlines() for done in hosts]
    assert [lines[0] for lines in shown] == ["0", "1"]
    assert all(lines[1].endswith("/work") and lines[2:] == ["started"] for lines in shown)
    assert shown[0][1] != shown[1][1]
    assert enter(root, "one", "--", "sh", "-c", 'echo "$SHOWN"').stdout == b"a 'b'\n"


def test_the_history_says_who_entered_which_worker(root: LocalRoot) -> None:
    assert enter(root, "two", "--worker=1", "--", "true").returncode == 0
    until(lambda: b" entered worker 1" in root.store.get(keys.job_history("two")).data)


def test_streams_are_bytes_arguments_are_as_typed_and_the_exit_code_is_the_commands(root: LocalRoot) -> None:
    noise = bytes(range(256)) * 300
    assert enter(root, "two", "--", "cat", stdin=noise).stdout == noise
    typed = ["printf", "%s|", "a b", "$HOME", "*", "", "'\"\\", "--worker=7"]
    assert enter(root, "two", "--", *typed).stdout == "".join(f"{each}|" for each in typed[2:]).encode()
    done = enter(root, "two", "--", "sh", "-c", "echo no >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"", b"no\n")
    assert enter(root, "two", "--", "sh", "-c", "kill -9 $$").returncode == 137
    missing = enter(root, "two", "--", "no-such-program")
    assert (missing.returncode, b"no such command" in missing.stderr) == (127, True)
    assert enter(root, "two", "--", "/etc/passwd").returncode == 126
    assert enter(root, "two", stdin=b"echo from-$BASTION_JOB\n").stdout == b"from-two\n"


def test_a_pipe_that_its_reader_closed_ends_the_command(root: LocalRoot) -> None:
    line = " ".join(command(root, "two", "--", "yes")) + " | head -n1; echo ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("y\n141\n", "")


def test_what_does_not_run_is_refused_with_what_to_do(root: LocalRoot) -> None:
    refused = {
        ("two", "--worker=2", "--", "true"): "has no worker 2; its workers are 0 to 1",
        ("one", "--worker=1"): "has no worker 1; its only worker is 0",
        ("nobody", "--", "true"): "nobody",
        ("two", "--"): "there is no command after --",
        ("two", "--worker=-1"): "worker",
    }
    for arguments, text in refused.items():
        done = enter(root, *arguments)
        assert (done.returncode, text in done.stderr.decode()) == (64, True), (arguments, done.stderr)
        assert done.stdout == b""
    root.submit("waits", "true", instance_type="tpu-v4-32", project_id="nowhere")
    done = enter(root, "waits", "--", "true")
    assert (done.returncode, b"bastion why waits" in done.stderr) == (64, True), done.stderr
    (Path(root.url) / "jobs" / "active" / "waits").unlink()


def test_a_process_that_only_has_the_marker_of_another_attempt_is_not_entered(root: LocalRoot) -> None:
    shown = enter(root, "two", "--", "sh", "-c", f"echo ${COMMAND_MARKER}").stdout.decode().strip()
    other = re.sub(r"-1\.0\.", "-2.0.", shown)
    assert other != shown
    with subprocess.Popen(["sleep", "60"], env={**os.environ, COMMAND_MARKER: other, "FORGED": "1"}) as forger:
        try:
            assert enter(root, "two", "--", "sh", "-c", "echo $FORGED").stdout == b"\n"
        finally:
            forger.kill()


def test_what_was_started_ends_with_the_jobs_command(root: LocalRoot) -> None:
    root.submit("short", "until [ -e done ]; do sleep 0.05; done")
    until(lambda: runs(root, "short"))
    with subprocess.Popen(command(root, "short", "--", "sh", "-c", "touch done; sleep 600")) as session:
        assert session.wait(30) in (128 + signal.SIGTERM, 128 + signal.SIGKILL)
    until(lambda: not root.store.head("jobs/states/short"))


class Terminal:
    """A person at a terminal of a given size."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "dumb"
            os.execv(arguments[0], arguments)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def expect(self, text: str) -> None:
        """Wait for a text after what was awaited before."""
        deadline = time.monotonic() + 30.0
        while text not in self.shown:
            assert time.monotonic() < deadline, f"{text!r} is not in {self.shown!r}"
            if select.select([self.descriptor], [], [], 0.2)[0]:
                with contextlib.suppress(OSError):
                    self.shown += os.read(self.descriptor, 65536).decode("utf-8", "replace")
        self.shown = self.shown.partition(text)[2]

    def end(self) -> int:
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.descriptor)
        return code


def test_a_shell_has_the_terminal_its_size_and_ctrl_c(root: LocalRoot) -> None:
    terminal = Terminal(command(root, "two", "--worker=1"))
    terminal.resize(33, 77)
    terminal.type("echo host-$BASTION_HOST_INDEX; stty size\n")
    terminal.expect("host-1")
    terminal.expect("33 77")
    terminal.type("echo be'gun'; sleep 600\n")
    terminal.expect("begun")
    terminal.resize(40, 100)
    time.sleep(0.2)
    terminal.type("\x03")
    terminal.type("echo co'de' $?; stty size\n")
    terminal.expect("code 130")
    terminal.expect("40 100")
    terminal.type("exit 9\n")
    assert terminal.end() == 9


def test_ctrl_c_goes_to_the_command_and_not_to_bastion(root: LocalRoot) -> None:
    line = "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done"
    terminal = Terminal(command(root, "two", "--", "bash", "-c", line))
    terminal.expect("ready")
    terminal.type("\x03")
    terminal.expect("caught")
    assert terminal.end() == 5


def test_sigterm_reaches_the_command(root: LocalRoot) -> None:
    line = "trap 'exit 6' TERM; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen(command(root, "two", "--", "bash", "-c", line), stdout=subprocess.PIPE) as session:
        assert session.stdout is not None
        assert session.stdout.readline() == b"ready\n"
        session.terminate()
        try:
            assert session.wait(30) == 6
        finally:
            session.kill()
