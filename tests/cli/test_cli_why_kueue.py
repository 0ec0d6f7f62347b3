"""What the commands show of jobs that Kueue decides on: its own words, and no estimate."""

from __future__ import annotations

import json

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.model.kueue import AdmissionCheck, KueueStatus, WorkloadCondition
from bastion.core.status import packing

_SETTINGS = b"""
[clusters.training]
uid = "5f0c1a2b-1111-2222-3333-444455556666"
queue = "bastion-{project}"
[types.v5p]
zones = ["k8s:training"]
[types.v5p.pod]
image = "train:v1"
[[tiers]]
model = "on-demand"
"""
_SLICE = "tpu-v5p-16"
_WORDS = "couldn't assign flavors to pod set host: insufficient unused quota (simulated)"


def wait(bastion, **kueue) -> None:
    """Submit a job that waits in Kueue's queue, and let the daemon see it."""
    bastion.write_settings(_SETTINGS)
    bastion.slices.kueue.most, bastion.slices.kueue.message = 0, _WORDS
    bastion.submit("job", instance_type=_SLICE)
    bastion.run_until(lambda: bastion.slices.created)
    bastion.settle(2)


def say(bastion, *, message: str, checks: int = 1, admitted: bool = False) -> None:
    """From now on Kueue says that."""
    now = bastion.clock.now()
    status = KueueStatus(
        queue="bastion-a",
        workload="jobset-b-1",
        admitted=admitted,
        conditions=tuple(
            WorkloadCondition(type=kind, status=kind == "QuotaReserved", reason="R", message=message, since=now)
            for kind in ("QuotaReserved", "Admitted", *(f"More{n}" for n in range(20)))
        ),
        checks=tuple(AdmissionCheck(name=f"check-{n}", state="Pending", message=message) for n in range(checks)),
        evictions=2,
    )
    bastion.slices.kueue.of = lambda name: status
    bastion.settle(2)


def test_why_shows_place_queue_workload_and_kueues_words_since_when_and_no_estimate(run, bastion) -> None:
    wait(bastion)
    bastion.clock.advance(3600)
    shown = run("why", "job").out
    since = packing.read(bastion.store.get(keys.STATUS).data).entries["job"].waiting.since
    assert "job is provisioning: in queue bastion-a for 1h in cluster training: Pending\n" in shown
    name = bastion.slices.created[0].ref.name
    assert f"  cluster training, LocalQueue bastion-a, Workload jobset-{name}\n" in shown
    assert "QuotaReserved=False for 1h (since " in shown
    assert f"): Pending: {_WORDS}\n" in shown
    assert "  waiting in queue bastion-a since " in shown
    assert "  estimated start: unknown: order and ETA are Kueue's\n" in shown
    document = json.loads(run("why", "job", "--output=json").out)
    assert (document["eta"]["p50"], document["eta"]["why"]) == (None, "order and ETA are Kueue's")
    assert document["job"]["queue"]["conditions"][0]["message"] == _WORDS
    assert since == bastion.record("job").attempt.waiting.since
    assert "estimated" not in run("why", "job", "--noeta").out


def test_while_there_is_no_workload_it_says_what_to_check(run, bastion) -> None:
    wait(bastion)
    bastion.slices.kueue.of = lambda name: KueueStatus(queue="bastion-a")
    bastion.settle(2)
    shown = run("why", "job").out
    assert "; Kueue has made no Workload yet\n" in shown
    assert "  no Workload (simulated)\n" in shown


def test_why_says_what_to_do_if_the_quota_file_lacks_the_type_or_the_project(run, bastion) -> None:
    quota = bastion.store.get(keys.PROJECT_QUOTAS).data.replace(b"v4", b"v5p")

    def told(of: bytes) -> str:
        bastion.write_quota(of)
        bastion.settle(2)
        return str(run("why", "job").out)

    wait(bastion)
    again = "if its queue is from `bastion quota export`, add it there and apply the export again"
    assert f"  the quota file has no v5p; {again}\n" in told(quota.replace(b"v5p", b"v6e"))
    assert "the quota file" not in told(quota)
    gone = told(quota.replace(b".a]", b".former]").replace(b"\na =", b"\nformer ="))
    assert f"  the quota file gives project a nothing; {again}, or run `bastion cancel job`\n" in gone


def test_why_names_the_queue_to_which_someone_moved_it(run, bastion) -> None:
    wait(bastion)
    assert "someone moved" not in run("why", "job").out
    bastion.slices.kueue.of = lambda name: KueueStatus(queue="bastion-b", workload="jobset-b-1")
    bastion.settle(2)
    shown = run("why", "job").out
    assert (
        ", LocalQueue bastion-b, Workload jobset-b-1\n  someone moved it there: it was submitted to bastion-a\n"
        in shown
    )


def test_admission_checks_and_evictions_are_shown(run, bastion) -> None:
    wait(bastion)
    say(bastion, message="waits for nodes")
    shown = run("why", "job").out
    assert "  admission check check-0: Pending: waits for nodes\n" in shown
    assert "QuotaReserved=True for" in shown
    assert "Admitted=False for" in shown
    assert "  evicted by Kueue 2 times\n" in shown


def test_of_a_job_that_ends_why_does_not_say_that_a_workload_is_still_to_come(run, bastion) -> None:
    wait(bastion)
    bastion.slices.kueue.most = None
    bastion.run_until(lambda: bastion.hosts.live("job"))
    bastion.slices.delete_seconds = 600.0
    bastion.slices.kueue.of = lambda name: KueueStatus(queue="bastion-a", admitted=True)
    bastion.cancel("job")
    bastion.settle(2)
    shown = run("why", "job").out
    assert "job is stopping" in shown
    assert "LocalQueue bastion-a\n" in shown


def test_list_and_history_name_the_queue(run, bastion) -> None:
    wait(bastion)
    assert "in queue bastion-a for" in run("list").out
    history = run("history", "job").out
    assert "attempt 1 is starting: tpu-v5p-16 in cluster training, queue bastion-a" in history
    assert "attempt 1 is waiting in queue bastion-a in cluster training: Pending" in history
    bastion.slices.kueue.most = None
    bastion.run_until(lambda: bastion.hosts.live("job"))
    assert "attempt 1 was admitted in queue bastion-a in cluster training after" in run("history", "job").out


def test_what_kueue_says_is_plain_text_of_bounded_size(run, bastion) -> None:
    wait(bastion)
    say(bastion, message="bad\x1b[2J\nwords " + "x" * 5000, checks=100)
    queue = packing.read(bastion.store.get(keys.STATUS).data).entries["job"].queue
    assert (len(queue.conditions), len(queue.checks)) == (limits.QUEUE_FACTS_SHOWN,) * 2
    assert queue.conditions[0].message.startswith(r"bad\x1b[2J words xxx")
    assert {len(each.message) for each in (*queue.conditions, *queue.checks)} == {limits.MESSAGE_MAX_CHARS}


def test_a_job_that_is_not_submitted_yet_has_no_estimate_and_others_have_one_without_it(
    run, bastion, monkeypatch
) -> None:
    monkeypatch.setattr(limits, "SUBMITTED_JOBS_MAX", 0)
    bastion.write_settings(_SETTINGS + b'[types.v4]\nzones = ["k8s:v4"]\n[types.v4.pod]\nimage = "a"\n' + _V4)
    bastion.submit("job", instance_type=_SLICE)
    bastion.submit("r", instance_type="tpu-v4-128")
    bastion.settle(3)
    shown = run("why", "job").out
    assert "TooManySubmitted: Kueue already has 0 jobs of this bastion" in shown
    assert "  estimated start: unknown: order and ETA are Kueue's\n" in shown
    assert "queue position" not in shown


_V4 = b"""
[clusters.v4]
uid = "5f0c1a2b-1111-2222-3333-444455556667"
"""


def test_launch_does_not_hold_the_quota_files_units_against_a_type_that_kueue_decides_on(run, bastion) -> None:
    bastion.write_settings(_SETTINGS)
    bastion.settle(2)
    given = ("launch", "--dry_run", "--project_id=a", "--user_id=alice", "--name=x")
    assert "launch would refuse" not in run(*given, f"--instance_type={_SLICE}", "--", "true").err
    assert "which the pool does not have" in run(*given, "--instance_type=tpu-v6e-16", "--", "true").err


def test_what_a_quota_file_would_do_leaves_them_out_and_says_so(run, bastion, tmp_path) -> None:
    wait(bastion)
    quota = tmp_path / "new.config"
    quota.write_bytes(bastion.store.get(keys.PROJECT_QUOTAS).data.replace(b"v4 = 0.5", b"v4 = 0.4", 1))
    shown = run("quota", "whatif", str(quota)).out
    assert "Jobs of v5p left out: order and ETA are Kueue's\n" in shown
    assert json.loads(run("quota", "whatif", str(quota), "--output=json").out)["delegated"] == ["v5p"]
