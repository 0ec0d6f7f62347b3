"""`bastion daemon run --slices=cloud`: everything as in the cloud, but that the settings' endpoint is an emulator's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.core.bucket import keys
from bastion.core.errors import NotFound
from bastion.core.status import packing
from bastion.emulators.tpu.address import locate
from bastion.wiring.local_home import LocalHome
from bastion.wiring.local_starter_quota import starter_quota
from bastion.wiring.roots import open_root
from tests.support.local_root import USER, LocalRoot
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

SETTINGS = """
project = "my-project"
endpoint = "{endpoint}"
token_file = "{token_file}"
[types.v4]
zones = ["us-central2-b"]
service_account = "worker@my-project.iam"
[[tiers]]
model = "on-demand"
"""


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Path]:
    """The state folder of an emulator that somebody started by hand."""
    folder = tmp_path / "tpu"
    command = [sys.executable, "-m", "bastion.cli.main", "emulator", "tpu", f"--state_dir={folder}"]
    with (tmp_path / "emulator.log").open("wb") as log:
        program = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until(lambda: locate(folder))
        yield folder
    finally:
        program.send_signal(signal.SIGTERM)
        program.wait(60)


def test_a_job_runs_on_a_slice_where_the_settings_say_and_waits_while_there_are_none(
    tmp_path: Path, emulator: Path
) -> None:
    home = LocalHome(tmp_path / "home")
    home.run_dir.mkdir(parents=True)
    url = str(tmp_path / "bucket" / "e2e-bastion")
    root = LocalRoot(home=home, url=url, store=open_root(url))
    store = root.store
    store.put(keys.PROJECT_QUOTAS, starter_quota(USER), generation=0)
    command = [sys.executable, "-m", "bastion.cli.main", "daemon", "run", f"--root={url}", "--slices=cloud"]
    with (tmp_path / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen(
            [*command, "--tick_seconds=0.2", "--bastion_host_jobs=as-daemon"],
            stdout=log,
            stderr=log,
            env={**os.environ, "BASTION_HOME": str(home.path)},
        )

    def document(key: str) -> dict:  # type: ignore[type-arg]
        try:
            return json.loads(store.get(key).data)
        except NotFound:
            return {}

    try:
        root.submit("hello", "echo hello", instance_type="tpu-v4-16")

        def reason() -> str:
            try:
                jobs = packing.read(store.get(keys.STATUS).data).jobs
            except NotFound:
                return ""
            return jobs[0].reason.message if jobs and jobs[0].reason else ""

        until(lambda: keys.DAEMON_SETTINGS in reason())
        address = locate(emulator)
        assert address is not None
        text = SETTINGS.format(endpoint=address.endpoint, token_file=emulator / "emulator.json")
        store.put(keys.DAEMON_SETTINGS, text.encode(), generation=0)
        until(lambda: document(keys.complete("hello")).get("result"), 150)
        result = document(keys.complete("hello"))["result"]
        assert (result["outcome"], result["exit_code"]) == ("succeeded", 0)
        assert [attempt["zone"] for attempt in result["attempts"]] == ["us-central2-b"]
        whole_lines = (emulator / "events.jsonl").read_text().rpartition("\n")[0]  # another may be written just now
        created = [json.loads(line) for line in whole_lines.splitlines()]
        names = {line["name"] for line in created if line["event"] == "ready"}
        assert {name.rpartition("/")[0] for name in names} == {"projects/my-project/locations/us-central2-b/nodes"}, (
            created
        )
    finally:
        daemon.terminate()
        daemon.wait(60)
