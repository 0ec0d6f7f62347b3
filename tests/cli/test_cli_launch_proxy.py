"""`bastion launch --proxy`, the setting of that name, and `bastion logs --proxy`."""

from __future__ import annotations

import pytest

from bastion.cli.jobs.encryption import check_place
from bastion.core.bucket import keys
from bastion.core.errors import Refused
from bastion.core.model import job_spec
from bastion.testing.cluster import BASTION
from bastion.testing.scripted_hosts import runs_for
from bastion.wiring.roots import parse_root
from tests.support.job_specs import new_spec

KEY = "projects/p/locations/global/keyRings/r/cryptoKeys/k"
OTHER = "projects/p/locations/global/keyRings/r/cryptoKeys/other"
LAUNCH = ("launch", "--name=job", "--instance_type=tpu-v4-8")


def proxy(bastion) -> str:
    """What the launched job's spec says."""
    runner = job_spec.parse(bastion.store.get(keys.active("job")).data, name="job", bastion=BASTION).runner
    return runner.proxy if runner is not None else "no runner"


def test_what_the_flag_says_stands_in_the_jobs_runner_however_often_it_is_given(run, bastion) -> None:
    run(*LAUNCH, f"--proxy=lake:{KEY}", f"--proxy=sea/a/:{KEY},sea/b/:{OTHER}", "--", "true", code=0)
    assert proxy(bastion) == f"lake:{KEY},sea/a/:{KEY},sea/b/:{OTHER}"


def test_without_it_nothing_is_encrypted(run, bastion) -> None:
    assert run(*LAUNCH, "--", "true").code == 0
    assert proxy(bastion) == ""


def test_a_setting_saves_the_typing_and_the_flag_wins_over_it(run, bastion) -> None:
    assert run("config", "set", "proxy", f"lake:{KEY}").code == 0
    run(*LAUNCH, "--", "true")
    assert proxy(bastion) == f"lake:{KEY}"


@pytest.mark.parametrize(("flag", "expected"), [("--proxy=", ""), (f"--proxy=sea:{KEY}", f"sea:{KEY}")])
def test_a_flag_sets_the_setting_aside(run, bastion, flag: str, expected: str) -> None:
    run("config", "set", "proxy", f"lake:{KEY}")
    assert run(*LAUNCH, flag, "--", "true").code == 0
    assert proxy(bastion) == expected


def test_a_setting_means_nothing_to_a_job_without_a_slice_and_that_is_said(run, bastion) -> None:
    run("config", "set", "proxy", f"lake:{KEY}")
    done = run("launch", "--name=job", "--", "true")
    assert (done.code, proxy(bastion)) == (0, "no runner")
    assert "nothing is encrypted: the setting proxy applies only to slice jobs" in done.err


def test_a_malformed_setting_is_not_remembered(run, bastion) -> None:
    done = run("config", "set", "proxy", "lake")
    assert (done.code, "proxy: 'lake' is not BUCKET" in done.err) == (64, True)
    assert "proxy" not in run("config", "show").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--instance_type=tpu-v4-8", "--proxy=lake"), "--proxy: 'lake' is not BUCKET[/PREFIX]:KEY"),
        (("--instance_type=tpu-v4-8", f"--proxy=gs://lake:{KEY}"), "remove gs://"),
        (("--instance_type=tpu-v4-8", f"--proxy=lake:{KEY}", f"--proxy=lake:{OTHER}"), "twice"),
        ((f"--proxy=lake:{KEY}",), "--proxy applies only to slice jobs"),
    ],
    ids=["no-key", "url", "twice", "no-slice"],
)
def test_what_cannot_be_is_refused_before_anything_is_written(run, bastion, arguments, message: str) -> None:
    done = run("launch", "--name=job", *arguments, "--", "true")
    assert (done.code, message in done.err) == (64, True)
    assert list(bastion.store.list("jobs/active/")) == []


@pytest.mark.parametrize("place", ["team", "team/shared", "team/shared/x-bastion/outputs/"])
def test_the_bastions_own_folder_cannot_be_encrypted(place: str) -> None:
    with pytest.raises(Refused, match="covers the bastion's own folder gs://team/shared/x-bastion"):
        check_place(f"{place}:{KEY}", parse_root("gs://team/shared/x-bastion"))


def test_on_this_machine_the_folders_name_is_the_buckets() -> None:
    with pytest.raises(Refused, match="covers the bastion's own folder"):
        check_place(f"permanent:{KEY}", parse_root("/home/ann/buckets/permanent/local-bastion"))
    check_place(f"permanent/ckpt/:{KEY}", parse_root("/home/ann/buckets/permanent/local-bastion"))


@pytest.mark.parametrize("place", ["other", "team/ckpt/", "team/shared/x-bastion-2/"])
def test_what_lies_beside_it_can(place: str) -> None:
    check_place(f"{place}:{KEY}", parse_root("gs://team/shared/x-bastion"))


def test_a_spec_of_a_file_and_a_flag_are_refused_alike_for_the_bastions_own_folder(run, bastion, tmp_path) -> None:
    own = f"memory/test-bastion/:{KEY}"
    assert "covers the bastion's own folder" in run(*LAUNCH, f"--proxy={own}", "--", "true").err
    spec = new_spec(bastion=BASTION, command="x", user_id="alice", project_id="a", instance_type="tpu-v4-8", proxy=own)
    (tmp_path / "job.json").write_bytes(spec.to_bytes())
    done = run("submit", "--spec=job.json")
    assert (done.code, "covers the bastion's own folder" in done.err) == (64, True)
    assert list(bastion.store.list("jobs/active/")) == []


def test_the_proxys_output_is_shown_instead_of_the_jobs_when_asked(run, bastion) -> None:
    bastion.hosts.scripts["job"] = runs_for(1)
    run("launch", "--name=job", "--instance_type=tpu-v4-16", f"--proxy=lake:{KEY}", "--", "true")
    bastion.run_until(lambda: bastion.result("job"))
    run_name = f"{(bastion.result('job') or {})['uid']}-1"
    for worker in (0, 1):
        bastion.write_log("job", run_name, worker, 1, f"stdout F mine {worker}")
        line = f"1970-01-01T00:00:0{worker}.000000Z stderr F served {worker}\n"
        bastion.run_keys.write_segment(bastion.store, "job", run_name, worker, 1, line.encode(), source="proxy")
    assert run("logs", "job").out == "[w00] mine 0\n[w01] mine 1\n"
    assert run("logs", "job").err == ""
    shown = run("logs", "job", "--proxy")
    assert (shown.out, shown.err) == ("", "[w00] served 0\n[w01] served 1\n")
    assert run("logs", "job", "--proxy", "--worker=1").err == "served 1\n"
    assert run("logs", "-f", "job", "--proxy").err.startswith("[w00] served 0\n[w01] served 1\n")


def test_a_job_without_a_proxy_has_no_output_of_one(run, bastion) -> None:
    run(*LAUNCH, "--", "true")
    done = run("logs", "job", "--proxy")
    assert (done.code, "the job 'job' has no storage proxy" in done.err) == (64, True)
