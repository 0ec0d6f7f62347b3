"""A node's startup script, from bare metal to a running agent, against a metadata server and a storage server.

The agent is a stand-in that says where it runs, in an agent file whose installer is the real one; the last tests use
the real agent, too.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import pytest

import bastion
from bastion import processes
from bastion.adapters import agent_packer
from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import AgentArguments, HostPhase, Order, OrderAction, Report
from bastion.core.errors import NotFound
from bastion.wiring.roots import open_root
from tests.support.agent_stand_in import AGENT, stand_in
from tests.support.storage_process import StorageProcess

pytestmark = pytest.mark.e2e

SOURCES = Path(bastion.__file__).parent
STARTUP = SOURCES / "agent" / "startup.sh"
PYTHON = f"python3.{sys.version_info.minor}"
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(slots=True)
class Node:
    """A VM: its metadata and storage servers, its disk, and the script that runs on it.

    Attributes:
        attributes: Its metadata.
        objects: What the storage server has, by URL.
        trouble: Answers that the next requests get instead of theirs, by what is in the path: a status or other bytes.
        asked: Path and `Authorization` of every request.
    """

    folder: Path
    attributes: dict[str, str] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    trouble: dict[str, list[int | bytes]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    address: str = ""
    vm_id: str = field(default_factory=lambda: secrets.token_hex(8))
    serial: list[str] = field(default_factory=list)

    def answer(self, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        self.asked.append((path, headers.get("authorization", "")))
        for part, answers in self.trouble.items():
            if part in path and answers:
                answer = answers.pop(0)
                return (answer, b"") if isinstance(answer, int) else (200, answer)
        instance = "/computeMetadata/v1/instance/"
        if path.startswith(instance):
            if headers.get("metadata-flavor") != "Google":
                return 403, b""
            if path == f"{instance}service-accounts/default/token":
                return 200, json.dumps({"access_token": "ya29.token", "expires_in": 3599}).encode()
            value = self.attributes.get(path.removeprefix(f"{instance}attributes/"))
            return (404, b"") if value is None else (200, value.encode())
        if headers.get("authorization") != "Bearer ya29.token":
            return 401, b""
        bucket, _, name = path.removeprefix("/storage/v1/b/").partition("/o/")
        data = self.objects.get(f"gs://{bucket}/{unquote(name.partition('?')[0])}")
        return (404, b"") if data is None else (200, data)

    @property
    def notes(self) -> Path:
        return self.folder / "notes"

    @property
    def agents(self) -> Path:
        return self.folder / "agents"

    def offer(self, archive: bytes, root: str = "gs://team/alice-bastion", *, sha256: str = "") -> str:
        """Stores an agent and names it in the metadata; returns its digest."""
        sha256 = sha256 or digest(archive)
        self.objects[f"{root}/agents/{sha256}/agent.tar"] = archive
        self.attributes["bastion-agent"] = json.dumps({"root": root, "agent": sha256})
        return sha256

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "BASTION_AGENT_DIR": str(self.agents),
            "BASTION_EMULATED_TPU": "1",
            "BASTION_VM": self.vm_id,
            "GCE_METADATA_HOST": self.address,
            "STORAGE_EMULATOR_HOST": f"http://{self.address}",
            "TEST_NOTES": str(self.notes),
            "PATH": self.path(),
            **more,
        }

    def path(self) -> str:
        """Nothing, if the system has this test's Python; else where that is alone."""
        if any(Path(folder, PYTHON).exists() for folder in SYSTEM_FOLDERS):
            return ""
        programs = self.folder / "programs"
        programs.mkdir(exist_ok=True)
        (programs / PYTHON).symlink_to(Path(sys.executable).resolve())
        return str(programs)

    def boot(self, **more: str) -> subprocess.Popen[str]:
        script = subprocess.Popen(
            ["/bin/bash", str(STARTUP)],
            env=self.environment(**more),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read, args=(script,), daemon=True).start()
        return script

    def _read(self, script: subprocess.Popen[str]) -> None:
        assert script.stderr is not None
        for line in script.stderr:
            self.serial.append(line.rstrip("\n"))

    def said(self, text: str) -> bool:
        return any(text in line for line in list(self.serial))

    def own_lines(self) -> list[str]:
        """What the script itself has said, as far as it was read: an agent may run before its reader comes to it."""
        return [line for line in list(self.serial) if line.startswith("bastion: ")]

    def running(self, agents: int = 1) -> list[dict[str, object]]:
        """What the agents said, when there are so many."""
        until(lambda: len(list(self.notes.glob("*.json"))) >= agents, lambda: "\n".join(self.serial))
        return [json.loads(path.read_text()) for path in self.notes.glob("*.json")]


def until(condition: Callable[[], object], about: Callable[[], str] = str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it never happened: {about()}"
        time.sleep(0.02)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    here = Node(folder=tmp_path)
    here.notes.mkdir()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = here.answer(self.path, {name.lower(): value for name, value in self.headers.items()})
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        here.address = f"127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield here
        assert processes.end_marked("BASTION_VM", here.vm_id, grace_seconds=0)
        server.shutdown()
        thread.join()


def test_with_an_empty_path_and_no_home_the_agent_runs_on_the_packages_of_its_file_alone(node: Node) -> None:
    sha256 = node.offer(stand_in(needs={"needed": "py3-none-any"}))
    node.boot(PYTHONPATH=str(node.folder / "elsewhere"))
    (said,) = node.running()
    home = node.agents / sha256
    assert said["prefix"] == str(home)
    packages = f"{home}/lib/{PYTHON}/site-packages"
    path = said["path"]
    assert isinstance(path, list)
    # Beside it only the standard library: neither the system's packages, nor PYTHONPATH, nor the working folder.
    assert packages in path
    assert not [entry for entry in path if "-packages" in entry and entry != packages]
    assert not {"", str(node.folder), str(node.folder / "elsewhere")} & set(path)
    assert said["arguments"] == ["--metadata"]
    environment = said["environment"]
    assert isinstance(environment, dict)
    assert "HOME" not in environment
    assert "BASTION_AGENT_DIR" not in environment
    assert set(SYSTEM_FOLDERS) <= set(environment["PATH"].split(":"))
    present = {entry.name for entry in Path(packages).iterdir()}
    assert present == {"bastion", "needed.py", "needed_data.py"}
    assert {entry.name for entry in node.agents.iterdir()} == {sha256, f"{sha256}.lock"}


def test_the_token_goes_to_the_storage_server_alone(node: Node) -> None:
    node.offer(stand_in())
    node.boot()
    node.running()
    with_token = {path for path, authorization in node.asked if authorization}
    assert with_token == {path for path, _ in node.asked if path.startswith("/storage/")}
    assert len(with_token) == 1


def test_the_script_waits_for_a_late_metadata_server_and_a_bucket_that_does_not_answer(node: Node) -> None:
    node.offer(stand_in())
    node.trouble = {"bastion-agent": [404], "/storage/": [503]}
    node.boot()
    node.running()
    until(lambda: len(node.own_lines()) >= 2)
    first, second = node.own_lines()[:2]
    assert first == "bastion: waiting for the metadata server"
    assert second.endswith("this VM's service account needs storage.objects.get on it")


def test_a_file_with_another_digest_is_never_unpacked_and_is_fetched_again(node: Node) -> None:
    harm = node.folder / "harm"
    wrong = stand_in(agent=f"open({str(harm)!r}, 'w')\n{AGENT}")
    node.offer(stand_in())
    node.trouble = {"/storage/": [wrong, stand_in()[:-2000]]}
    node.boot()
    node.running()
    until(lambda: sum("has a wrong SHA-256" in line for line in list(node.serial)) == 2)
    assert not harm.exists()


def test_an_agent_that_cannot_be_imported_is_never_found_complete(node: Node) -> None:
    node.offer(stand_in(agent="import no_such_package\n"))
    node.boot()
    until(lambda: sum("No module named 'no_such_package'" in line for line in list(node.serial)) >= 2)
    assert not [entry for entry in node.agents.iterdir() if not entry.name.endswith(".lock") and entry.name[0] != "."]


def test_hosts_that_share_a_folder_fetch_and_install_once(node: Node) -> None:
    sha256 = node.offer(stand_in())
    for _ in range(4):
        node.boot()
    node.running(4)
    assert sum(path.startswith("/storage/") for path, _ in node.asked) == 1
    assert {entry.name for entry in node.agents.iterdir()} == {sha256, f"{sha256}.lock"}


def test_a_node_whose_python_is_not_served_says_which_is_and_goes_on_trying(node: Node) -> None:
    other = f"cp3{sys.version_info.minor + 1}-none-any"
    node.offer(stand_in(needs={"needed": other}))
    node.boot()
    until(lambda: node.said("no Python on this VM can run the agent"))
    assert node.said("missing wheels: needed")
    assert node.said(f"which supports Python 3.{sys.version_info.minor + 1}")
    # The daemon gives it another one: for ever means for ever.
    node.offer(stand_in())
    node.running()


def test_a_full_disk_is_called_that_and_no_wheel_is_blamed(node: Node) -> None:
    full = "def _unpack(*_):\n    raise OSError(errno.ENOSPC, 'No space left on device')\n"
    node.offer(stand_in(installer=full))
    node.boot()
    until(lambda: node.said("no space left on device: "))
    assert node.said(f"MiB is free while installing the agent in {node.agents}")
    assert not node.said("no Python on this VM can run the agent")
    node.offer(stand_in())
    node.running()


def test_programs_that_are_called_python_and_are_none_are_passed_over(node: Node) -> None:
    shims = node.folder / "shims"
    shims.mkdir()
    for name, text in (("python3.14", "echo no such version >&2; exit 127"), (PYTHON, "exit 1")):
        (shims / name).write_text(f"#!/bin/bash\n{text}\n")
        (shims / name).chmod(0o755)
    node.offer(stand_in())
    node.boot(PATH=f"{shims}:{node.path()}".rstrip(":"))
    node.running()


def test_a_folder_as_bucket_is_read_in_place(node: Node) -> None:
    archive = stand_in()
    root = node.folder / "a bucket" / "alice-bastion"
    sha256 = node.offer(archive, str(root))
    file = root / keys.agent_file(sha256)
    file.parent.mkdir(parents=True)
    file.write_bytes(archive)
    node.boot()
    node.running()
    assert {path for path, _ in node.asked} == {"/computeMetadata/v1/instance/attributes/bastion-agent"}


@pytest.mark.parametrize("key", ["root", "agent"])
@pytest.mark.parametrize(
    "value",
    ["$(touch injected)", "`touch injected`", "'; touch injected; '", "a\ntouch injected", "../../x", None, 7],
    ids=["substitution", "backquotes", "quote", "newline", "path", "null", "number"],
)
def test_metadata_never_become_code(node: Node, key: str, value: object) -> None:
    node.offer(stand_in())
    document = json.loads(node.attributes["bastion-agent"])
    node.attributes["bastion-agent"] = json.dumps(document | {key: value})
    script = node.boot()
    until(lambda: node.said("the attribute bastion-agent"))
    script.send_signal(signal.SIGTERM)
    assert script.wait(20) == 143
    assert {entry.name for entry in node.folder.iterdir()} <= {"notes", "programs"}


def test_a_pod_asks_the_metadata_server_for_a_token_alone_and_never_uses_systemd(node: Node) -> None:
    node.offer(stand_in())
    units = node.folder / "units"
    units.mkdir()
    arguments = node.attributes.pop("bastion-agent")
    node.trouble = {"/token": [503]}
    node.boot(BASTION_AGENT=arguments, BASTION_EMULATED_TPU="", BASTION_UNIT_DIR=str(units))
    (said,) = node.running()
    assert said["arguments"] == ["--pod"]
    assert {path.rpartition("/")[2] for path, _ in node.asked if path.startswith("/computeMetadata/")} == {"token"}
    assert list(units.iterdir()) == []
    # What has gone wrong once was tried again: it is no fault of the image.
    assert not node.said("no Python in this image")


def test_without_curl_python_fetches(node: Node) -> None:
    node.offer(stand_in())
    function = '() { [ "$2" != curl ] && builtin command "$@"; }'
    node.boot(**{"BASH_FUNC_command%%": function})
    node.running()


def test_an_agent_that_crashes_is_started_again_also_when_its_environment_is_gone(node: Node) -> None:
    sha256 = node.offer(stand_in())
    node.boot()
    node.running()
    (note,) = node.notes.glob("*.json")
    shutil.rmtree(node.agents / sha256)
    os.kill(int(note.stem), signal.SIGKILL)
    node.running(2)
    until(lambda: node.said("the agent exited with code 137; restarting it"))


def test_what_was_not_used_for_weeks_is_removed_when_another_agent_comes(node: Node) -> None:
    old = node.agents / ("0" * 64)
    used = node.agents / ("1" * 64)
    cut_short = node.agents / ".new-abc"
    for folder, days in ((old, 15), (used, 13), (cut_short, 2)):
        folder.mkdir(parents=True)
        then = time.time() - days * 24 * 3600
        os.utime(folder, (then, then))
    sha256 = node.offer(stand_in())
    node.boot()
    node.running()
    assert {entry.name for entry in node.agents.iterdir()} == {used.name, sha256, f"{sha256}.lock"}


def test_under_systemd_the_agent_is_a_unit_that_never_gives_up(node: Node) -> None:
    units = node.folder / "units"
    programs = node.folder / "fakes"
    units.mkdir()
    programs.mkdir()
    called = node.folder / "called"
    systemctl = programs / "systemctl"
    # The first call fails, as while the system still boots.
    systemctl.write_text(f'#!/bin/bash\necho "$@" >> {called}\n[ "$(wc -l < {called})" -gt 1 ]\n')
    systemctl.chmod(0o755)
    for name, code in (("id", 1), ("useradd", 0)):
        program = programs / name
        program.write_text(f'#!/bin/bash\necho "${{0##*/}} $*" >> {called}.users\nexit {code}\n')
        program.chmod(0o755)
    sha256 = node.offer(stand_in())
    path = f"{programs}:{node.path()}".rstrip(":")
    script = node.boot(BASTION_EMULATED_TPU="", BASTION_UNIT_DIR=str(units), PATH=path)
    assert script.wait(40) == 0
    assert called.read_text().splitlines() == ["daemon-reload", "daemon-reload", "start bastion-agent.service"]
    assert Path(f"{called}.users").read_text().splitlines() == [
        "id -u bastion-job",
        "useradd --system --user-group --create-home --home-dir /var/lib/bastion-job --shell /bin/bash bastion-job",
    ]
    unit = (units / "bastion-agent.service").read_text()
    for line in (
        f"ExecStart={node.agents}/{sha256}/bin/python -I -m bastion.wiring.agent --metadata",
        "Restart=always",
        "StartLimitIntervalSec=0",
        "KillMode=mixed",
        "Environment=HOME=/root",
    ):
        assert line in unit.splitlines()
    if verifier := shutil.which("systemd-analyze"):
        verified = subprocess.run(
            [verifier, "verify", str(units / "bastion-agent.service")], capture_output=True, text=True, check=False
        )
        assert "bastion-agent" not in verified.stderr


def test_the_real_agent_of_this_installation_runs_a_command_out_of_a_bucket_in_cloud_storage(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = StorageProcess(node.folder / "buckets", bucket="team")
    storage.start()
    try:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        root = "gs://team/alice-bastion"
        store = open_root(root)
        packed = agent_packer.pack(node.folder / "kept")
        store.put(keys.agent_file(packed.sha256), packed.archive, generation=0)
        arguments = AgentArguments(
            root=root, bastion="alice-bastion", job="job", run="abcdefghij-1", run_key="ab" * 32, poll_seconds=0.1,
            accelerator_type="v4-8", devices_per_host=4, agent=packed.sha256,
        )  # fmt: skip
        order = Order(run=arguments.run, action=OrderAction.RUN, command="exit 7")
        store.put(keys.order(arguments.run), order.to_bytes(), generation=0)
        node.attributes |= {
            "bastion-agent": arguments.to_bytes().decode(),
            "agent-worker-number": "0",
            "worker-network-endpoints": "unused:0:127.0.0.1",
        }
        node.boot(
            STORAGE_EMULATOR_HOST=storage.url,
            BASTION_STATE_DIR=str(node.folder / "state"),
            BASTION_EMULATED_BOOT_ID="boot-1",
        )

        def report() -> Report | None:
            try:
                return protocol.read(Report, store.get(keys.report(arguments.run, 0)).data)
            except NotFound:
                return None

        until(lambda: (seen := report()) is not None and seen.phase.final, lambda: "\n".join(node.serial))
        final = report()
        assert final is not None
        assert (final.phase, final.exit_code) == (HostPhase.EXITED, 7)
    finally:
        assert processes.end_marked("BASTION_VM", node.vm_id, grace_seconds=0)
        storage.stop()
