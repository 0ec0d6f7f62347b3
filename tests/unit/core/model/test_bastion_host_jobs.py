"""What is in force for commands on the bastion's own host, and which specs that refuses."""

from __future__ import annotations

import pytest

from bastion.core.model import bastion_host_jobs
from bastion.core.model.bastion_host_jobs import BastionHostJobs, HostJobsMode, alarm, decide, why_held, why_refused
from bastion.core.model.job_spec import JobSpec
from tests.support.job_specs import new_spec

OWN, DAEMON, OFF = HostJobsMode.OWN_USER, HostJobsMode.AS_DAEMON, HostJobsMode.OFF
NO_RIGHTS = "the daemon is not root and has no CAP_SETUID"


@pytest.mark.parametrize(
    ("setting", "default", "why_no_users", "mode", "reason"),
    [
        (None, None, "", OWN, "the daemon may use users of their own"),
        (None, None, NO_RIGHTS, OFF, f"{NO_RIGHTS}, and bastion_host_jobs is not set"),
        (None, DAEMON, NO_RIGHTS, DAEMON, "set by bastion daemon run --bastion_host_jobs"),
        (OFF, DAEMON, "", OFF, "set by config/daemon.toml"),
        (DAEMON, None, "", DAEMON, "set by config/daemon.toml"),
        (OWN, DAEMON, "", OWN, "set by config/daemon.toml"),
        (OWN, DAEMON, NO_RIGHTS, OFF, f'bastion_host_jobs is "own-user", but {NO_RIGHTS}'),
        (None, OWN, NO_RIGHTS, OFF, f'bastion_host_jobs is "own-user", but {NO_RIGHTS}'),
    ],
)
def test_the_settings_win_over_the_flag_and_nothing_runs_as_the_daemon_for_want_of_users(
    setting: HostJobsMode | None, default: HostJobsMode | None, why_no_users: str, mode: HostJobsMode, reason: str
) -> None:
    found = decide(setting, default, why_no_users=why_no_users)
    assert (found.mode, found.reason) == (mode, reason)
    assert found.unmet == (OWN in (setting, default) and mode is OFF)


def spec(**options: object) -> JobSpec:
    return new_spec("a", bastion="t-bastion", **options)


def test_off_refuses_what_needs_the_host_and_nothing_else() -> None:
    on_host = why_refused(spec(), "off", NO_RIGHTS)
    assert on_host == (
        f"jobs without a slice are off on this bastion: {NO_RIGHTS}; run it on a slice, or ask the operator to set "
        "bastion_host_jobs in config/daemon.toml"
    )
    assert why_refused(spec(instance_type="tpu-v4-8", cleanup_command="x"), "off", "").startswith(
        'cleanup commands are off on this bastion: bastion_host_jobs is "off"; submit it without one'
    )
    assert why_refused(spec(instance_type="tpu-v4-8"), "off", "") == ""
    for mode in ("own-user", "as-daemon", "of-a-newer-daemon"):
        assert why_refused(spec(), mode, "") == ""


def test_an_accepted_job_waits_and_the_operator_hears_of_what_waits() -> None:
    off = BastionHostJobs(mode=OFF, reason=NO_RIGHTS)
    assert why_held(off) == f"jobs without a slice are off on this bastion: {NO_RIGHTS}"
    assert why_held(bastion_host_jobs.AS_DAEMON) == ""
    assert alarm(off, ()) == ""
    assert alarm(off, list("abcdefg")).startswith("the cleanup of a, b, c, d, e and 2 more waits: cleanup commands are")
    assert alarm(BastionHostJobs(mode=OFF, reason="no users", unmet=True), ()) == (
        "no command starts on the bastion's own host: no users"
    )
