"""`bastion launch --wait`: what it shows of a job while it goes on, and what it returns."""

from __future__ import annotations

import json

from bastion.core.bucket import keys
from bastion.core.errors import ProvisionerRefused
from bastion.testing.scripted_hosts import runs_for


def test_waiting_shows_progress_and_output_and_returns_the_jobs_own_code(run, bastion) -> None:
    bastion.hosts.scripts["job"] = runs_for(3, code=7)
    lines = iter([(1, "stdout F one"), (2, "stderr F oops"), (3, "stdout P last")])

    def write() -> None:
        record = bastion.record("job")
        if record is not None and record.attempt is not None and record.attempt.running_since is not None:
            seq, line = next(lines, (0, ""))
            if seq:
                bastion.write_log("job", bastion.attempt("job"), 0, seq, line)

    bastion.on_sleep.append(write)
    done = run("launch", "--name=job", "--wait", "--", "x", code=7)
    assert done.out == "one\nlast"
    progress = done.err.splitlines()
    assert "oops" in progress
    for line in ("submitted; waiting for the scheduler to pick it up", "running on 1 host"):
        assert progress.count(line) == 1
    assert progress[-1] == "job failed: worker 0 exited with code 7 (exit code 7)"


def test_workers_of_a_slice_are_told_apart_and_hosts_are_counted(run, bastion) -> None:
    bastion.hosts.scripts["job"] = runs_for(4)

    def write() -> None:
        record = bastion.record("job")
        if record is not None and record.attempt is not None and not bastion.listed("logs/job.d/"):
            run = bastion.attempt("job")
            bastion.write_log("job", run, 0, 1, "stdout F from zero", "stderr F warn")
            bastion.write_log("job", run, 1, 1, "stdout P from ", "stdout F one")

    bastion.on_sleep.append(write)
    done = run("launch", "--name=job", "--instance_type=tpu-v4-16", "--wait", "--", "x", code=0)
    assert done.out == "[w00] from zero\n[w01] from one\n"
    assert "[w00] warn\n" in done.err
    assert "provisioning 0/2 hosts\n" in done.err
    assert "running on 2 hosts\n" in done.err
    assert done.err.endswith("job succeeded: all workers exited with code 0\n")


def test_progress_bars_of_several_hosts_appear_in_time_each_state_in_a_line_of_its_host(run, bastion) -> None:
    bastion.hosts.scripts["job"] = runs_for(60)
    states = iter(range(1, 40))

    def write() -> None:
        record = bastion.record("job")
        if record is not None and record.attempt is not None and record.attempt.running_since is not None:
            step = next(states, 40)
            for worker in (0, 1) if step < 40 else ():
                bastion.write_log("job", bastion.attempt("job"), worker, step, f"stderr P \rw{worker}: {step}/39")

    bastion.on_sleep.append(write)
    shown = []
    bastion.on_sleep.append(lambda: shown.append(run.capture.readouterr().err))
    done = run("launch", "--name=job", "--instance_type=tpu-v4-16", "--wait", "--", "x", code=0)
    before = "".join(shown)
    for worker in (0, 1):
        lines = [line for line in before.splitlines() if f"w{worker}: " in line]
        assert len(lines) >= 3, before  # long before they end
        assert len(lines) <= 60 / 5 + 1
        assert all(line.startswith(f"[w0{worker}] w{worker}: ") for line in lines)
        assert f"[w0{worker}] w{worker}: 39/39\n" in before + done.err
    assert "\r" not in before + done.err


def test_output_that_comes_with_the_end_is_all_shown_before_returning(run, bastion) -> None:
    bastion.hosts.scripts["job"] = runs_for(1)

    def write() -> None:
        # Between the attempt's end and the job's: its cleanup command runs then.
        record = bastion.record("job")
        if record is not None and record.attempts and not bastion.listed("logs/job.d/"):
            for seq in range(1, 31):
                bastion.write_log("job", f"{record.uid}-1", 0, seq, f"stdout F {seq}")

    bastion.on_sleep.append(write)
    done = run("launch", "--name=job", "--cleanup_command=true", "--wait", "--", "x")
    assert done.out == "".join(f"{n}\n" for n in range(1, 31))


def test_why_it_is_queued_is_part_of_the_progress(run, bastion) -> None:
    bastion.submit("holder", instance_type="tpu-v4-64")
    bastion.hosts.scripts["holder"] = runs_for(20)
    bastion.hosts.scripts["job"] = runs_for(1)
    bastion.settle(3)
    done = run("launch", "--name=job", "--instance_type=tpu-v4-64", "--wait", "--", "x", code=0)
    assert "queued: WaitingFor" in done.err or "queued: Behind" in done.err


def test_a_cancelled_job_returns_143(run, bastion) -> None:
    bastion.on_sleep.append(
        lambda: bastion.cancel("job") if bastion.status("job") == "ACTIVE" and bastion.slept == 5 else None
    )
    done = run("launch", "--name=job", "--wait", "--", "x", code=143)
    assert "job cancelled" in done.err


def test_a_job_that_the_cloud_refuses_returns_64(run, bastion) -> None:
    bastion.slices.refusal = ProvisionerRefused("no such runtime version")
    done = run("launch", "--name=job", "--instance_type=tpu-v4-8", "--wait", "--", "x", code=64)
    assert "job refused: " in done.err
    assert "no such runtime version" in done.err


def test_a_spec_that_the_daemon_refuses_returns_64(run, bastion) -> None:
    """As an older daemon would that does not know a field's new value."""

    def refuse() -> None:
        meta = bastion.store.head(keys.active("job"))
        assert meta is not None
        document = {"format": 1, "name": "job", "generation": meta.generation, "problem": "too new for me"}
        bastion.store.put(keys.invalid("job"), json.dumps(document).encode(), generation=0)
        bastion.on_sleep.clear()

    bastion.step = lambda seconds=1.0: bastion.clock.advance(seconds)  # type: ignore[method-assign]
    bastion.on_sleep.append(refuse)
    done = run("launch", "--name=job", "--wait", "--", "x", code=64)
    assert "job: the spec is refused: too new for me" in done.err


def test_a_job_lost_to_infrastructure_returns_75_and_says_so(run, bastion) -> None:
    def lose() -> None:
        for request in bastion.bastion_host.live_requests():
            bastion.bastion_host.lose(request.ref.name)

    bastion.on_sleep.append(lose)
    done = run("launch", "--name=job", "--wait", "--", "x", code=75)
    assert "job failed because of an infrastructure failure, not its command" in done.err


def test_ctrl_c_detaches_with_130_and_the_job_goes_on(run, bastion) -> None:
    def interrupt() -> None:
        if bastion.status("job") == "ACTIVE":
            raise KeyboardInterrupt

    bastion.on_sleep.append(interrupt)
    done = run("launch", "--name=job", "--wait", "--", "x", code=130)
    assert "detached; the job job keeps running" in done.err
    assert "bastion logs -f job" in done.err
    bastion.settle(3)
    assert bastion.status("job") == "ACTIVE"
    assert bastion.listed("jobs/user_states/") == []


def test_waiting_with_json_keeps_stdout_for_the_result(run, bastion) -> None:
    bastion.hosts.scripts["job"] = runs_for(1, code=3)
    bastion.on_sleep.append(
        lambda: (
            bastion.write_log("job", bastion.attempt("job"), 0, 1, "stdout F hello")
            if bastion.status("job") == "ACTIVE" and not bastion.listed("logs/job.d/")
            else None
        )
    )
    done = run("launch", "--name=job", "--wait", "--output=json", "--", "x")
    document = json.loads(done.out)
    assert (done.code, document["exit_code"], document["outcome"]) == (3, 3, "failed")
    assert "hello" in done.err


def test_an_evicted_job_shows_its_second_attempt(run, bastion) -> None:
    bastion.hosts.scripts["job"] = lambda host, elapsed: (
        0 if elapsed >= 1 and bastion.result("owner") is not None else None
    )
    bastion.hosts.scripts["owner"] = runs_for(2)

    def act() -> None:
        record = bastion.record("job")
        if record is None or record.attempt is None or record.attempt.running_since is None:
            return
        run = bastion.attempt("job")
        if not bastion.listed(f"logs/job.d/{run}/"):
            bastion.write_log("job", run, 0, 1, f"stdout F attempt {record.attempt.number}")
            if record.attempt.number == 1:
                bastion.submit("owner", user="bob", project="b", instance_type="tpu-v4-32")

    bastion.on_sleep.append(act)
    done = run("launch", "--name=job", "--instance_type=tpu-v4-64", "--wait", "--", "x", code=0)
    assert done.out == "[w00] attempt 1\n[w00] attempt 2\n"
    assert "--- attempt 2 ---" in done.err
    assert "stopping: evicted: " in done.err


def test_a_dead_daemon_is_reported_once(run, bastion) -> None:
    bastion.settle(2)
    bastion.step = lambda seconds=1.0: bastion.clock.advance(seconds)  # type: ignore[method-assign]

    def give_up() -> None:
        if bastion.slept > 200:
            raise KeyboardInterrupt

    bastion.on_sleep.append(give_up)
    done = run("launch", "--name=job", "--wait", "--", "x")
    assert done.err.count("the daemon has not renewed its lease for") == 1


def test_a_wait_for_capacity_is_told_once_and_where_it_ends(run, bastion) -> None:
    bastion.slices.waits[""] = "WAITING_FOR_RESOURCES"
    bastion.hosts.scripts["job"] = runs_for(1)
    began = bastion.clock.now()

    def end_of_the_stockout() -> None:
        if bastion.clock.now() - began > 300:
            bastion.slices.waits.clear()

    bastion.on_sleep.append(end_of_the_stockout)
    done = run("launch", "--name=job", "--instance_type=tpu-v4-16", "--wait", "--", "x", code=0)
    assert done.err.count("provisioning: WAITING_FOR_RESOURCES for ") == 1


def test_list_and_why_show_for_how_long_a_job_has_waited_for_capacity(run, bastion) -> None:
    bastion.slices.waits[""] = "WAITING_FOR_RESOURCES"
    bastion.submit("job", instance_type="tpu-v4-16")
    bastion.settle(4)
    bastion.clock.advance(720)
    bastion.settle(2)
    assert "WAITING_FOR_RESOURCES for 12m" in run("list").out
    assert "job is provisioning: WAITING_FOR_RESOURCES for 12m" in run("why", "job").out
