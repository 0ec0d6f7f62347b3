"""What waiting jobs await, worked out from hand-made views."""

from __future__ import annotations

from dataclasses import replace

from bastion.core.bucket import keys
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.model import job_spec
from bastion.core.model.awaiting import Awaiting, EndedJob
from bastion.core.model.job_record import JobRecord, Outcome
from bastion.core.model.job_spec import JobOptions
from bastion.core.model.lifecycle import Status
from bastion.core.model.world import JobView
from bastion.core.reconcile.dependencies import has_news, refused, resolve

ROOT = "memory/b"
UID = {name: keys.job_uid(ROOT, name, 1) for name in "abcdefgh"}


def view(name: str, *after: str, on: str = "succeeded", at_most: int | None = None, **fields: object) -> JobView:
    options = JobOptions(
        after=[{"job": each, "uid": UID[each], "on": on} for each in after] or None, after_at_most_seconds=at_most
    )
    spec = job_spec.new(
        name=name, bastion="x-bastion", command="run", user_id="u", project_id="p", now=1000.0, options=options
    )
    record = JobRecord(name=name, uid=UID[name], generation=1, job=spec, queued_at=1000.0)
    return JobView(name=name, record=record.model_copy(update=fields), record_generation=5)


def over(name: str, outcome: str, code: int = 0, status: Status = Status.CLEANING) -> JobView:
    return view(name, status=status, outcome=Outcome(outcome=outcome, exit_code=code, message=""))


def found(*views: JobView, ended: dict[str, EndedJob] | None = None) -> dict[str, Awaiting]:
    jobs = {each.name: each for each in views}
    return dict(resolve(jobs, {}, ended or {}, root=ROOT).awaiting)


def test_jobs_that_await_nobody_cost_nothing() -> None:
    assert found(view("a"), over("b", "failed")) == {}


def test_each_job_is_met_live_or_failed() -> None:
    awaiting = found(view("d", "a", "b", "c"), over("a", "succeeded"), view("b"), over("c", "failed", 7))
    assert awaiting["d"].met == (UID["a"],)
    assert awaiting["d"].names == ("b", "c")
    assert awaiting["d"].refusal == "it was to start after the success of c, which failed with exit code 7"


def test_an_outcome_counts_only_when_the_nodes_are_gone() -> None:
    stopping = over("a", "cancelled", status=Status.CANCELLING)
    assert found(view("d", "a", on="ended"), stopping)["d"] == Awaiting(names=("a",))
    assert found(view("d", "a", on="ended"), over("a", "cancelled"))["d"] == Awaiting(met=(UID["a"],))


def test_what_was_met_before_is_not_asked_again() -> None:
    before = view("d", "a", "b", after_met=(UID["a"],))
    assert found(before, view("b"))["d"] == Awaiting(names=("b",), met=(UID["a"],))
    assert found(view("d", "a", after_met=(UID["a"],))) == {}


def test_only_jobs_that_are_not_live_are_looked_up_and_are_awaited_until_then() -> None:
    jobs = {each.name: each for each in (view("d", "a", "b"), view("e", "a"), view("b"))}
    resolved = resolve(jobs, {}, {}, root=ROOT)
    assert list(resolved.not_live) == [UID["a"]]
    assert resolved.awaiting["e"] == Awaiting(names=("a",))
    gone = found(*jobs.values(), ended={UID["a"]: EndedJob(outcome="")})
    text = f"it was to start after a ({UID['a']}), which is not known to this bastion"
    assert gone["d"].refusal == gone["e"].refusal == text
    assert found(*jobs.values(), ended={UID["a"]: EndedJob(outcome="succeeded")})["e"] == Awaiting(met=(UID["a"],))
    strange = found(view("e", "a"), ended={UID["a"]: EndedJob(outcome="unknown")})
    assert strange["e"].refusal == "it was to start after the success of a, which ended without a known outcome"
    anyhow = found(view("e", "a", on="ended"), ended={UID["a"]: EndedJob(outcome="unknown")})
    assert anyhow["e"].met == (UID["a"],)


def test_a_spec_that_is_not_read_yet_is_awaited_and_a_refused_one_is_not() -> None:
    meta = ObjectMeta(key=keys.active("a"), generation=1, size=10, updated=1000.0)
    jobs = {"d": view("d", "a", on="ended")}
    resolved = resolve(jobs, {"a": meta}, {}, root=ROOT)
    assert (resolved.awaiting["d"], dict(resolved.not_live)) == (Awaiting(names=("a",)), {})
    jobs["a"] = JobView(name="a", spec_meta=meta, spec_problem="no command")
    assert resolve(jobs, {"a": meta}, {}, root=ROOT).awaiting["d"].refusal.endswith("a, whose spec is refused")
    newer = replace(meta, generation=2)
    assert list(resolve({"d": view("d", "a")}, {"a": newer}, {}, root=ROOT).not_live) == [UID["a"]]


def test_a_state_that_cannot_be_read_may_be_the_awaited_jobs() -> None:
    broken = JobView(name="a", frozen="the state of a is not valid")
    assert found(view("d", "a"), broken)["d"] == Awaiting(names=("a",))


def test_a_ghost_has_ended_and_its_result_decides() -> None:
    ghost = replace(view("a"), ghost=True)
    jobs = {"d": view("d", "a"), "a": ghost}
    assert list(resolve(jobs, {}, {}, root=ROOT).not_live) == [UID["a"]]
    waiting_ghost = replace(view("d", "a"), ghost=True)
    assert found(waiting_ghost, view("a")) == {}


def test_all_jobs_of_a_cycle_are_refused_and_none_besides() -> None:
    views = (view("a", "b"), view("b", "c"), view("c", "a", "e"), view("d", "a", on="ended"), view("e"))
    awaiting = found(*views)
    assert awaiting["a"].refusal == "it would start after itself: a after b after c after a"
    assert awaiting["c"].refusal == "it would start after itself: c after a after b after c"
    assert awaiting["d"] == Awaiting(names=("a",))
    assert found(view("a", "a"))["a"].refusal == "it would start after itself: a after a"


def test_two_cycles_are_found_and_paths_that_meet_are_none() -> None:
    views = (view("a", "b"), view("b", "a"), view("c", "d"), view("d", "c"), view("e", "f", "g"))
    awaiting = found(*views, view("f", "h"), view("g", "h"), view("h"))
    assert {name for name, each in awaiting.items() if each.refusal} == set("abcd")


def test_a_chain_of_thousands_is_no_recursion() -> None:
    first, each = view("a"), view("b", "a").record
    assert first.record is not None and each is not None
    jobs = {"j0": first}
    for number in range(1, 3_000):
        name, before = f"j{number}", f"j{number - 1}"
        uid = keys.job_uid(ROOT, name, 1)
        after = (replace(each.job.limits.after[0], job=before, uid=keys.job_uid(ROOT, before, 1)),)
        spec = replace(each.job, name=name, limits=replace(each.job.limits, after=after))
        jobs[name] = JobView(name=name, record=each.model_copy(update={"name": name, "uid": uid, "job": spec}))
    jobs["j0"] = replace(first, name="j0", record=first.record.model_copy(update={"uid": keys.job_uid(ROOT, "j0", 1)}))
    resolved = resolve(jobs, {}, {}, root=ROOT)
    assert not resolved.not_live
    assert len(resolved.awaiting) == 2_999
    assert not [each for each in resolved.awaiting.values() if each.refusal]


def test_patience_ends_at_its_time_and_only_while_somebody_is_awaited() -> None:
    waiting = view("d", "a", at_most=60)
    awaited = Awaiting(names=("a", "b", "c", "e"))
    assert refused(waiting, awaited, 1059.0) == ""
    assert not has_news(waiting, awaited, 1059.0)
    text = "waited for a, b, c and 1 more for 1m, the limit set by --after_at_most"
    assert refused(waiting, awaited, 1060.0) == text
    assert has_news(waiting, awaited, 1060.0)
    assert refused(waiting, Awaiting(met=(UID["a"],)), 1060.0) == ""
    assert has_news(waiting, Awaiting(met=(UID["a"],)), 1000.0)
    assert not has_news(view("d"), None, 1060.0)
