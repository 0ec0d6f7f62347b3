"""`deploy/close-metadata.sh` with real firewalls: in a network namespace with a stand-in for the metadata server.

Runs as root only, where nftables and iptables are installed; no VM of Google has been tried.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "deploy" / "close-metadata.sh"
JOB, OTHER_JOB, DAEMON = 64101, 64102, 64103
# Run in the namespace: servers at the addresses, the script twice, then who may connect where, one line each.
PROGRAM = r"""
import encodings.idna, os, socket, subprocess, sys
run = lambda *command: subprocess.run(command, check=True)
run("ip", "link", "set", "lo", "up")
servers = []
for address in ("169.254.169.254", "169.254.0.7", "fd20:ce::254", "fd00:ec2::254", "192.0.2.1"):
    v6 = ":" in address
    run("ip", "addr", "add", address + ("/128" if v6 else "/32"), "dev", "lo", *(["nodad"] if v6 else []))
    for port in (80, 53):
        server = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET)
        server.bind((address, port))
        server.listen(64)
        servers.append(server)

def can_connect(user, address, port):
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        try:
            socket.create_connection((address, port), timeout=5).close()
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

def tell(when):
    for user in map(int, sys.argv[2:]):
        for server in servers:
            address, port = server.getsockname()[:2]
            print(when, user, address, port, "open" if can_connect(user, address, port) else "closed")

tell("before")
for _ in range(2):
    run(sys.argv[1], *sys.argv[2:4])
tell("after")
"""


def needs(*programs: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("a network namespace of one's own needs root")
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    for program in ("unshare", "ip", *programs):
        if shutil.which(program, path=path) is None:
            pytest.skip(f"{program} is not installed here")
    if subprocess.run(["unshare", "--net", "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("this machine allows no network namespaces")


def path_with(folder: Path, *programs: str) -> str:
    """A PATH on which these are the only programs that are not everywhere."""
    folder.mkdir()
    wanted = ("bash", "ip", "unshare", "cat", "getent", "awk", *programs)
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    for program in wanted:
        found = shutil.which(program, path=path)
        assert found, program
        (folder / program).symlink_to(found)
    return str(folder)


@pytest.mark.parametrize("tools", [("nft",), ("iptables", "iptables-restore", "ip6tables", "ip6tables-restore")])
def test_a_job_reaches_no_metadata_server_but_its_name_server_and_others_reach_both(
    tmp_path: Path, tools: tuple[str, ...]
) -> None:
    needs(*tools)
    script = tmp_path / "close-metadata"
    # /usr/sbin may have the other tool.
    script.write_text(SCRIPT.read_text("utf-8").replace('PATH="$PATH:/usr/sbin:/sbin"', ""), "utf-8")
    script.chmod(0o755)
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", PROGRAM, str(script), *map(str, (JOB, OTHER_JOB, DAEMON))],
        env={**os.environ, "PATH": path_with(tmp_path / "bin", *tools)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found = [line.split() for line in done.stdout.splitlines()]
    closed = {(int(user), address, port) for when, user, address, port, state in found if state == "closed"}
    assert {state for when, *_, state in found if when == "before"} == {"open"}
    link_local = ("169.254.169.254", "169.254.0.7", "fd20:ce::254", "fd00:ec2::254")
    assert closed == {(user, address, "80") for user in (JOB, OTHER_JOB) for address in link_local}


def test_it_fails_where_nothing_can_close_it(tmp_path: Path) -> None:
    script = tmp_path / "close-metadata"
    script.write_text(SCRIPT.read_text("utf-8").replace('PATH="$PATH:/usr/sbin:/sbin"', ""), "utf-8")
    done = subprocess.run(
        ["/bin/bash", str(script), str(JOB)],
        env={"PATH": path_with(tmp_path / "bin")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.strip().splitlines()) == (
        1,
        ["bastion: the metadata server was not closed for jobs: there is neither nft nor iptables; install nftables"],
    )


def test_it_fails_where_there_are_no_users_to_close_it_for(tmp_path: Path) -> None:
    folder = path_with(tmp_path / "bin")
    (Path(folder) / "getent").unlink()
    (Path(folder) / "getent").symlink_to("/bin/true")
    done = subprocess.run(["/bin/bash", str(SCRIPT)], env={"PATH": folder}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "there are no users bastion-job-*" in done.stderr
