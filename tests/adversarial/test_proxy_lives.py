"""How the proxy's processes end: whatever happens to one, at whatever moment, none is left and the log says why."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from bastion.adapters.kms import keyring
from bastion.net.http1 import Disconnect
from tests.support.attacked_proxy import HOST, KEY, UPLOAD, URL, AttackedProxy, Seen, attacked, content, reserved
from tests.support.proxy_processes import connections, gone, of_each
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

MIB = 1024 * 1024
# Whoever runs the tests may ignore SIGHUP (nohup does), which children inherit.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from bastion.wiring.proxy_main import main
sys.exit(main())
"""
# The key service does not answer the first of those that serve.
HANGS_SECONDS = 100
HANGS = f"""
import time
from bastion.wiring import proxy as proxy_setup
proxy_setup.try_key = lambda *_: time.sleep({HANGS_SECONDS})
{PROGRAM}"""
# SIGINT comes while modules are still loaded.
INTERRUPTED = f"""
import os, signal, sys

class Interrupter:
    def find_spec(self, name, *_):
        if name == "bastion.wiring.proxy":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupter())
{PROGRAM}"""

# One's files are closed long before it has ended, as where the kernel has much else to do.
ENDS_SLOWLY = f"""
import os, time
from bastion.proxy.serving.prefork import Prefork

def run(_prefork, seat, control, _others, _first):
    if seat.siblings.own == 1:
        control.close()
        time.sleep(0.5)
        os._exit(7)
    time.sleep({HANGS_SECONDS})

Prefork._run = run
{PROGRAM}"""


def children(process: int) -> list[int]:
    return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))


@contextlib.contextmanager
def begun(
    folder: Path, program: str, *, limit: Callable[[], None] | None = None, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """The program as a host's agent starts it."""
    ring = folder / "keyring.json"
    keyring.create(ring, KEY)
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    environment |= {
        "GCP_KMS_BUCKET_KEY_MAPPING": f"vault:{KEY}",
        "GCS_PROXY_KEYRING": str(ring),
        "GCS_PROXY_STATE_PATH": str(folder / "state"),
        "GCS_PROXY_LISTEN": "127.0.0.1:0",
        "GCS_PROXY_PROCESSES": "2",
        **variables,
    }
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, preexec_fn=limit,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedProxy]:
    with attacked(tmp_path_factory.mktemp("lives"), GCS_PROXY_PROCESSES="2") as proxy:
        yield proxy


@pytest.fixture
def proxy(started: AttackedProxy) -> Iterator[AttackedProxy]:
    yield started
    started.watch = lambda seen, size: None
    if started.process is None or started.process.poll() is not None:
        started.start()


def while_it_uploads(proxy: AttackedProxy, name: str, act: Callable[[], None]) -> requests.Response | None:
    """Does something in the middle of an upload; its answer, if there is one."""
    acted = threading.Event()

    def watch(seen: Seen, size: int) -> None:
        if not acted.is_set() and seen.request.method == "PUT" and size > MIB:
            acted.set()
            act()

    proxy.watch = watch
    with contextlib.suppress(requests.ConnectionError):
        return proxy.requests().post(
            UPLOAD, params={"uploadType": "media", "name": name}, data=content(12 * MIB, 1), timeout=30
        )
    return None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM], ids=["KILL", "HUP", "TERM"])
def test_ended_while_the_key_service_hangs_nothing_is_left(tmp_path: Path, number: int) -> None:
    with begun(tmp_path, HANGS) as process:
        until(lambda: len(children(process.pid)) == 2)
        serving = children(process.pid)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        until(lambda: all(map(gone, serving)))
    assert said == ""


def test_one_that_dies_before_it_serves_is_noticed_although_another_hangs(tmp_path: Path) -> None:
    with begun(tmp_path, HANGS) as process:
        until(lambda: len(children(process.pid)) == 2)
        serving = children(process.pid)
        os.kill(serving[1], signal.SIGKILL)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 1
        assert said.splitlines()[-1] == f"process {serving[1]} of the proxy ended unexpectedly (-9); stopping all"
        until(lambda: all(map(gone, serving)))


def test_one_whose_end_takes_a_while_is_named_all_the_same(tmp_path: Path) -> None:
    with begun(tmp_path, ENDS_SLOWLY) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.fullmatch(r"process \d+ of the proxy ended unexpectedly \(7\); stopping all", said.splitlines()[-1])


def test_an_interrupt_while_it_loads_is_no_traceback(tmp_path: Path) -> None:
    with begun(tmp_path, INTERRUPTED) as process:
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (-signal.SIGINT, "")


def test_more_processes_than_there_are_descriptors_for_are_an_error_that_says_so(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))

    with begun(tmp_path, PROGRAM, limit=limit, GCS_PROXY_PROCESSES="64") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.splitlines()[-1].startswith("cannot start 64 processes of the proxy (Too many open files);")
    assert "Traceback" not in said


def test_threads_that_cannot_be_started_are_an_error_that_says_so(tmp_path: Path) -> None:
    # More than may be mapped, for each.
    wants_much = f"import threading\nthreading.stack_size({1 << 41})\n{PROGRAM}"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))

    with begun(tmp_path, wants_much, limit=limit) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.startswith("cannot start 2 processes of the proxy (can't start new thread); raise the limits")


def test_a_disk_that_takes_no_key_is_an_error_that_says_so(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    with begun(tmp_path, PROGRAM, limit=limit) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 64
    assert said.startswith("cannot store the proxy's key in ")
    assert list((tmp_path / "state" / "authority").iterdir()) == []


def test_it_listens_at_an_ipv6_address(tmp_path: Path) -> None:
    try:
        kept = reserved("::1", socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    port = kept.getsockname()[1]
    with kept, begun(tmp_path, PROGRAM, GCS_PROXY_LISTEN=f"[::1]:{port}") as process:
        until((tmp_path / "state" / "certs" / "mitmproxy-ca-cert.pem").exists)
        with socket.create_connection(("::1", port), 10) as client:
            client.sendall(f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            assert client.recv(12) == b"HTTP/1.1 200"
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert f"ready on [::1]:{port};" in said


def test_one_that_is_stopped_is_gone_with_the_first(proxy: AttackedProxy) -> None:
    processes = proxy.processes
    os.kill(processes[2], signal.SIGSTOP)
    proxy.kill()
    until(lambda: all(map(gone, processes)))


def test_those_that_end_gracefully_are_gone_with_the_first(proxy: AttackedProxy) -> None:
    processes = proxy.processes
    killed, held = threading.Event(), threading.Event()

    def end_and_kill() -> None:
        assert proxy.process is not None
        proxy.process.terminate()
        # One of them has nothing to do and ends.
        until(lambda: any(map(gone, processes)))
        proxy.kill()
        killed.set()
        held.wait(40)

    uploading = threading.Thread(target=while_it_uploads, args=(proxy, "killed-in-the-end", end_and_kill))
    uploading.start()
    try:
        assert killed.wait(40)
        # Sooner than the grace ends that they give to the upload.
        until(lambda: all(map(gone, processes)), 5.0)
    finally:
        held.set()
        uploading.join()


def test_why_all_ended_is_the_logs_last_word_whatever_becomes_of_the_requests_at_hand(proxy: AttackedProxy) -> None:
    assert proxy.process is not None
    serving = proxy.processes[1:]
    killed: list[int] = []

    def kill_the_idle_one() -> None:
        killed.append(min(serving, key=lambda process: connections(proxy, process)))
        os.kill(killed[0], signal.SIGKILL)
        until(lambda: "ended unexpectedly" in proxy.log.read_text())
        raise Disconnect(reset=True)

    answer = while_it_uploads(proxy, "last-word", kill_the_idle_one)
    assert answer is not None
    assert answer.status_code == 503
    assert proxy.process.wait(60) == 1
    why = f"process {killed[0]} of the proxy ended unexpectedly (-9); stopping all"
    *_, first, failed, last = proxy.log.read_text().splitlines()
    assert first.endswith(why)
    assert "WARNING POST /upload/" in failed
    assert last == f"bastion: {why}"


def test_told_to_end_it_answers_a_request_that_one_process_has_passed_to_another(proxy: AttackedProxy) -> None:
    assert proxy.process is not None
    data = content(12 * MIB, 5)
    # Idle, they are asked in turn: the second connection is with another process.
    first, second = proxy.requests(), proxy.requests()
    begun = first.post(UPLOAD, params={"uploadType": "resumable", "name": "passed-on"}, json={}, timeout=20)
    told = threading.Event()
    both: list[bool] = []

    def watch(seen: Seen, size: int) -> None:
        if not told.is_set() and seen.request.method == "PUT" and size > MIB:
            told.set()
            both.append(min(of_each(proxy)) > 0)
            os.kill(proxy.processes[0], signal.SIGTERM)
            time.sleep(0.3)

    proxy.watch = watch
    answer = second.put(begun.headers["Location"], data=data, timeout=30)
    assert answer.status_code == 200, answer.text
    assert both == [True]
    assert proxy.process.wait(60) == 0
    proxy.start()
    assert proxy.requests().get(f"{URL}/vault/passed-on", timeout=20).content == data
