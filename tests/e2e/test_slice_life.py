"""What happens to a command on an emulated slice: it is tried again in place, or the cloud takes its hosts away."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import HostPhase, Report
from bastion.core.errors import NotFound
from bastion.emulators.tpu.address import locate
from bastion.emulators.tpu.faults import Faults
from bastion.wiring.local import down
from bastion.wiring.local_home import LocalHome
from tests.support.local_root import LocalRoot, RootJob
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHome]:
    """As `conftest.home`, with an emulator that gives hosts notice of what is done to them."""
    home = LocalHome(tmp_path_factory.mktemp("home"))
    home.run_dir.mkdir()
    command = [sys.executable, "-m", "bastion.cli.main", "emulator", "tpu", f"--state_dir={home.emulator_dir}"]
    with (home.run_dir / "emulator.log").open("wb") as log:
        emulator = subprocess.Popen([*command, "--notice_seconds=60"], stdout=log, stderr=log)
    until(lambda: locate(home.emulator_dir))
    yield home
    down(home, say=lambda _: None)
    emulator.wait(60)


class Job(RootJob):
    def history(self) -> str:
        try:
            return self.store.get(keys.job_history(self.name)).data.decode()
        except NotFound:
            return ""

    def report(self, run: str, host: int) -> Report | None:
        try:
            return protocol.read(Report, self.store.get(keys.report(run, host)).data)
        except NotFound:
            return None


def test_a_command_that_fails_on_one_host_runs_again_on_all_of_them_in_place(
    new_root: Callable[[str], LocalRoot], tmp_path: Path
) -> None:
    root = new_root("tries")
    root.start_daemon()
    there, go = tmp_path / "there", tmp_path / "go"
    there.mkdir()
    command = (
        f'echo try $BASTION_TRY; if [ "$BASTION_TRY" = 2 ]; then cat left; until [ -e {go} ]; do sleep 0.1; done; '
        "exit 0; fi; "
        f'echo "left by $BASTION_HOST_INDEX" > left; there={there}; touch $there/$BASTION_HOST_INDEX; '
        # A host that has not begun by then would be told to wait for the second try.
        '[ "$BASTION_HOST_INDEX" = 2 ] && while [ $(ls $there | wc -l) -lt 4 ]; do sleep 0.1; done && exit 5; sleep 600'
    )
    job = Job(root, "again", command, instance_type="tpu-v4-32", max_tries=2)
    until(job.runs, 60)
    (run,) = job.runs()
    (claim,) = root.store.list(f"{keys.JOBS_CLAIMS}{run}.")
    until(lambda: (report := job.report(run, 2)) is not None and report.try_number == 2, 60)
    (again,) = root.store.list(f"{keys.JOBS_CLAIMS}{run}.")
    go.touch()  # not before: with the job its claim goes, and its reports
    until(job.result, 60)
    result = job.result()
    assert result is not None
    assert (result["outcome"], result["exit_code"]) == ("succeeded", 0)
    assert claim is not None
    assert claim == again
    assert job.runs() == [run], "it ran on other nodes"
    (attempt,) = result["attempts"]
    (failed,) = attempt["tries"]
    assert (failed["number"], failed["exit_code"], failed["failed_worker"]) == (1, 5, 2)
    for host in range(4):
        lines = [line for line in job.output(run, host) if "erminated" not in line]
        assert lines == ["try 1", "bastion: try 2 of 2", "try 2", f"left by {host}"]


def test_a_host_that_hangs_alone_is_shown_and_runs_again_with_its_peer_that_had_ended(
    new_root: Callable[[str], LocalRoot],
) -> None:
    root = new_root("stuck")
    root.start_daemon()
    hang = f"{sys.executable} -c 'import os, time\ndef the_hang(): os.write(1, b\"1\\n\"); time.sleep(600)\nthe_hang()'"
    command = f'[ "$BASTION_TRY$BASTION_HOST_INDEX" = 10 ] && {hang}; echo try $BASTION_TRY'
    job = Job(root, "stuck", command, instance_type="tpu-v4-16", stuck_after_seconds=5)
    until(job.result, 120)
    result = job.result()
    assert result is not None
    assert (result["outcome"], result["exit_code"]) == ("succeeded", 0)
    (attempt,) = result["attempts"]
    (stuck,) = attempt["tries"]
    assert (stuck["number"], stuck["stuck"], stuck["exit_code"]) == (1, True, None)
    (run,) = job.runs()
    assert job.output(run, 1) == ["try 1", "bastion: try 2 of 2", "try 2"]
    lines = job.output(run, 0)
    assert [line for line in lines if " in the_hang" in line], lines
    assert lines[-2:] == ["bastion: try 2 of 2", "try 2"]
    assert "try 1 is stuck: no output, checkpoint or step on any worker for 5s" in job.history()


@pytest.mark.parametrize(("kind", "error"), [("preempt", "Preempted"), ("maintain", "Maintenance")])
def test_a_host_that_the_cloud_takes_away_lets_its_command_save_and_says_why(
    new_root: Callable[[str], LocalRoot], kind: str, error: str
) -> None:
    root = new_root(kind)
    root.start_daemon()
    command = "trap 'cat \"$BASTION_PREEMPT_FILE\"; echo saved; exit 1' TERM; echo up; while :; do sleep 0.1; done"
    job = Job(root, kind, command, instance_type="tpu-v4-16")
    until(lambda: job.runs() and all("up" in job.output(job.runs()[0], host) for host in (0, 1)), 60)
    (run,) = job.runs()
    faults = Faults(root.home.emulator_dir / "faults")
    getattr(faults, kind)(keys.gang(run))
    seen: dict[int, Report] = {}

    def both_said_why() -> bool:
        for host in (0, 1):
            report = job.report(run, host)
            if report is not None and report.phase.final:
                seen[host] = report
        return len(seen) == 2

    until(both_said_why)
    assert {(report.phase, report.error) for report in seen.values()} == {(HostPhase.STOPPED, error)}
    for host in (0, 1):
        assert job.output(run, host)[-2:] == [seen[host].message, "saved"]
    until(lambda: error in job.history())
    root.store.put(keys.user_state(kind), b'{"status": "CANCELLING"}', generation=0)
    until(job.result, 60)
    result = job.result()
    assert result is not None
    assert result["outcome"] == "cancelled"
    assert result["attempts"][0]["cause"] == "infrastructure"
