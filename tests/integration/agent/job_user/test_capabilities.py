"""An agent that is not root, with the capabilities that the daemon's unit gives it, and one that lacks them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bastion.job_user import JobUser

# An agent in a process of its own, whose command shows its rights, plants a link and leaves a process behind.
AGENT = """
import json, os, sys
from pathlib import Path
from bastion import processes
from bastion.agent import command_user
from bastion.core.bucket import keys
from tests.support.worker_stage import RUN, Stage
processes.become_subreaper()
folder, text, secret = sys.argv[1:]
stage = Stage(Path(folder) / "state")
identity = stage.host(on_vm=True, job_user=text)._identity
user = command_user.decide(identity, emulated=False, in_pod=False)
stage.run(
    "id -u; grep -E '^Cap(Inh|Prm|Eff|Amb)' /proc/self/status; env -i setsid sleep 600 & ls -l > out/list; "
    f"cat /proc/{os.getpid()}/environ; ln -s {secret} out/key; chmod 0 out/list; touch $HOME/file; chmod 0 $HOME",
    host=stage.host(on_vm=True, job_user=text, command_user=user), output_dir="out",
)
report = stage.final()
left = [] if user.user is None else user.user.processes()
state = stage._live[0][0]._state
state.discard_work()
from tests.support.waiting import until
until(lambda: not any(path.name.startswith(("job", "discarded")) for path in state.folder.iterdir()))
stage.end()
print(json.dumps([report.exit_code, report.message, stage.log(), len(left)]))
"""


def agent(public: Path, user: JobUser, secret: Path, capabilities: str) -> tuple[object, str, list[str], int]:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("needs setpriv of util-linux")
    own = user.uid + 100_000
    mine = public / "agent"
    mine.mkdir(mode=0o711)
    shutil.chown(mine, own, own)
    done = subprocess.run(
        [
            *(setpriv, f"--reuid={own}", f"--regid={own}", "--clear-groups", f"--inh-caps={capabilities}"),
            *(f"--ambient-caps={capabilities}", "--bounding-set=-all,+setuid,+setgid,+kill,+chown", "--no-new-privs"),
            *(sys.executable, "-c", AGENT, str(mine), f"{user.uid}:{user.gid}", str(secret)),
        ],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found[0], found[1], found[2], found[3]


def test_an_agent_with_four_capabilities_gives_its_command_none(public: Path, user: JobUser, secret: Path) -> None:
    code, message, log, left = agent(public, user, secret, "-all,+setuid,+setgid,+kill,+chown")
    assert code == 0, (message, log)
    said = [line.removeprefix("stdout F ") for line in log if line.startswith("stdout")]
    none = "\t" + "0" * 16
    assert said == [str(user.uid), *(f"Cap{each}:{none}" for each in ("Inh", "Prm", "Eff", "Amb"))]
    assert any("environ: Permission denied" in line for line in log)
    assert "key (" in message
    assert not left


def test_an_agent_without_them_runs_nothing_and_says_what_to_do(public: Path, user: JobUser, secret: Path) -> None:
    code, message, log, _ = agent(public, user, secret, "-all,+setuid,+setgid")
    assert (code, log) == (None, [])
    assert message == (
        f"the agent cannot run commands as user {user.uid}: it is not root and has no CAP_CHOWN, CAP_KILL; start it as "
        "root or with these capabilities (AmbientCapabilities= of its systemd unit)"
    )
