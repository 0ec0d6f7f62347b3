"""The agent as the process that a pod starts, with a bucket in a folder that its command cannot open."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import AgentArguments, HostPhase, Order, OrderAction, Report
from bastion.job_user import JobUser
from bastion.wiring.roots import make_folders, open_root, parse_root
from tests.support.stored_logs import stored_text
from tests.support.worker_stage import RUN

COMMAND = """
id -u; echo mine > out/file; touch "$BASTION_CHECKPOINT_FILE"; echo '{"step": 1}' >> "$BASTION_RESULTS_FILE"
ls "$ROOT" || echo refused
env | grep BASTION_AGENT= || echo unknown
(env -i setsid sleep 600 &)
"""


@pytest.mark.parametrize("root", [False, True])
def test_a_pods_agent_stores_what_the_command_cannot_reach(public: Path, user: JobUser, root: bool) -> None:
    (public / "bucket").mkdir(mode=0o700)
    url = f"{public}/bucket/team-bastion"
    make_folders(parse_root(url))
    store = open_root(url)
    arguments = AgentArguments(
        root=url, bastion="team-bastion", job="job", run=RUN, run_key=secrets.token_hex(32),
        poll_seconds=0.1, accelerator_type="v4-8",
        devices_per_host=4, leave_when_done=True, job_user=f"{user.uid}:{user.gid}",
    )  # fmt: skip
    order = Order(run=RUN, action=OrderAction.RUN, command=COMMAND, env={"ROOT": url}, output_dir="out", root=root)
    store.put(keys.order(RUN), order.to_bytes(), generation=0)
    environment = {
        "BASTION_AGENT": arguments.to_bytes().decode(),
        "BASTION_POD_IP": "127.0.0.1",
        "BASTION_POD_UID": "uid-1",
        "BASTION_SLICE_INDEX": "0",
        "BASTION_STATE_DIR": str(public / "state"),
        "BASTION_WORKER": "0",
        "PATH": os.defpath,
    }
    done = subprocess.run(
        [sys.executable, "-m", "bastion.wiring.agent", "--pod"],
        env=environment | {"BASTION_POD_NAME": f"{keys.gang(RUN)}-slice-0-0-abcde"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = protocol.read(Report, store.get(keys.report(RUN, 0)).data)
    assert (report.phase, bool(report.checkpointed_at)) == (HostPhase.EXITED, True)
    text = stored_text(store, keys.log_segments("job", RUN, 0))
    said = [line.partition("stdout F ")[2] for line in text.splitlines() if "stdout F" in line]
    assert said[0] == ("0" if root else str(user.uid))
    assert ("refused" in said) is not root
    assert ("setup and command run as root (--root_user)" in text) is root
    assert said[-1] == "unknown"
    uid = RUN.partition("-")[0]
    assert any(store.get(meta.key).data == b"mine\n" for meta in store.list(keys.outputs("job", uid, 0)))
    assert b"step" in store.get(keys.results("job", uid, 0)).data
    assert not user.processes()
