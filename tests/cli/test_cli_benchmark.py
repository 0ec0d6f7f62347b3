"""`bastion benchmark check`, `run`, `status` and `cancel` on the simulated bastion."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from bastion.adapters.forwarding_store import ForwardingStore
from bastion.benchmark import documents, layout, measurements
from bastion.benchmark.layout import CellResult, Outcome, Value
from bastion.benchmark.submit import Submission
from bastion.cli import connect
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import AccessDenied
from bastion.ports import Clock, ObjectStore
from bastion.testing.faulty_store import FaultyStore
from bastion.testing.scripted_hosts import runs_for
from tests.cli.conftest import Bastion, Terminal
from tests.support.bench_files import text

_T = TypeVar("_T")


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    path = tmp_path / "bench.toml"
    path.write_text(text())
    return path


def test_check_shows_cells_jobs_cost_and_whether_the_quota_fits(run: Terminal, bastion: Bastion, bench: Path) -> None:
    bastion.settle(2)
    done = run("benchmark", "check", str(bench), code=0)
    assert "cells       3\n" in done.out
    assert "jobs        9 (3 repeats of each cell)" in done.out
    # 3 repeats of 20 minutes with 8, 8 and 16 units
    assert "worst case  32.0 unit-hours (32.0 v4)" in done.out
    assert "4096_tpu-v4-16  16 v4  fits" in done.out
    assert bastion.listed("benchmarks/") == []


def test_check_as_json(run: Terminal, bastion: Bastion, bench: Path) -> None:
    bastion.settle(2)
    document = json.loads(run("benchmark", "check", str(bench), "--output=json", code=0).out)
    assert document["worst_case_unit_hours"] == {"v4": 32.0}
    assert [cell["obstacle"] for cell in document["cells"]] == ["", "", ""]


@pytest.mark.parametrize("command", ["check", "run"])
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "[environment]",
            "[budget]\nunit_hours = 30\n[environment]",
            "bastion: the benchmark may use 32.0 unit-hours, but [budget] unit_hours is 30; use a shorter run.max_run",
        ),
        ('["tpu-v4-8"', '["tpu-v4-128"', "1 of 2 cells can never start (4096_tpu-v4-128): the job needs 128 v4, but"),
        (
            '["tpu-v4-8"',
            '["tpu-v4-128"',
            "choose a smaller run.instance_type or fewer run.num_replicas; or leave them out",
        ),
        ('"tpu-v4-8"', '"tpu-v4-9"', "bastion: cell 1024_tpu-v4-9: tpu-v4-9 is not a valid size"),
        ('project = "a"', 'project = "c"', "3 of 3 cells can never start"),
        ("max_run", 'num_replicas = "{size}"\nmax_run', "run.num_replicas is '1024' there; it must be a number from 1"),
        ("repeats = 3", "repeats = 0", "bench.toml has 1 problem; nothing was started"),
        ("max_run", 'bundle = "none"\nmax_run', "bench.toml, or leave bundle out to run without code"),
        ('name = "matmul"', 'name = "test-bastion"', "begins with the bastion's own name"),
    ],
)
def test_what_must_not_start_is_refused_before_anything_is_written(
    run: Terminal, bastion: Bastion, bench: Path, command: str, old: str, new: str, said: str
) -> None:
    bastion.settle(2)
    changed = text((old, new))
    if "tpu-v4-128" in new or "tpu-v4-9" in new:
        changed = changed.replace("exclude =", "# ").replace("[1024, 4096]", "[4096]" if "128" in new else "[1024]")
    bench.write_text(changed)
    before = bastion.listed("jobs/")
    done = run("benchmark", command, str(bench), code=64)
    assert said in done.err, done.err
    assert bastion.listed("benchmarks/") == []
    assert bastion.listed("jobs/") == before


def test_a_file_that_is_not_there_is_refused(run: Terminal, bastion: Bastion) -> None:
    del bastion
    done = run("benchmark", "check", "nothing.toml", code=64)
    assert done.err == (
        "bastion: cannot read nothing.toml: No such file or directory; name the benchmark's file, like bench.toml\n"
    )


def test_run_submits_and_a_second_one_goes_on(run: Terminal, bastion: Bastion, bench: Path) -> None:
    bastion.settle(2)
    first = run("benchmark", "run", str(bench), code=0)
    name = first.out.strip()
    assert name.startswith("matmul/2")
    assert f"started {name}\n" in first.err
    assert "submitted 9 jobs; this machine is no longer needed" in first.err
    assert f"bastion benchmark cancel {name}" in first.err
    assert len(bastion.listed(keys.JOBS_ACTIVE)) == 10
    second = run("benchmark", "run", str(bench), code=0)
    assert second.out == first.out
    assert f"going on with {name}\n" in second.err
    assert len(bastion.listed(keys.JOBS_ACTIVE)) == 10


def test_an_edited_file_is_a_new_run_and_the_other_one_is_named(run: Terminal, bastion: Bastion, bench: Path) -> None:
    bastion.settle(2)
    first = run("benchmark", "run", str(bench), code=0).out.strip()
    bench.write_text(text(("repeats = 3", "repeats = 2")))
    bastion.clock.advance(5)
    second = run("benchmark", "run", str(bench), code=0)
    assert f"{first} is of another file or other code and has not ended; both run now" in second.err
    assert second.out.strip() != first


def test_the_code_is_packed_from_the_files_own_folder(run: Terminal, bastion: Bastion, bench: Path) -> None:
    bastion.settle(2)
    (bench.parent / "code").mkdir()
    (bench.parent / "code" / "matmul.py").write_text("print(1)")
    bench.write_text(text(("max_run", 'bundle = "code"\nmax_run')))
    done = run("benchmark", "run", str(bench), code=0)
    assert "packed 1 file from" in done.err
    matrix = _matrix(bastion, done.out)
    assert matrix.bundle is not None
    assert bastion.listed("bundles/") == [keys.bundle(matrix.bundle)]
    (bench.parent / "code" / ".env").write_text("KEY=1")
    assert "run.bundle is code: " in run("benchmark", "run", str(bench), code=64).err


def _matrix(bastion: Bastion, out: str) -> layout.Matrix:
    name, _, run = out.strip().partition("/")
    return documents.read_matrix(bastion.store, name, run)


def test_status_counts_by_cell_and_cancel_ends_all(run: Terminal, bastion: Bastion, bench: Path) -> None:
    bastion.settle(2)
    name = run("benchmark", "run", str(bench), code=0).out.strip()
    bastion.settle(3)
    for asked in (name, "matmul"):
        done = run("benchmark", "status", asked, code=0)
        assert f"run       {name}\n" in done.out
        assert "CELL" in done.out
        assert "1024_tpu-v4-8" in done.out
    cells = json.loads(run("benchmark", "status", name, "--output=json", code=0).out)["cells"]
    assert [(cell["repeats"], cell["complete"]) for cell in cells] == [(3, 0)] * 3
    # Its own report would be written at the same time, and this one says nothing that stays true.
    assert f"the run {name} has not ended, and writes its report" in run("benchmark", "report", name, code=64).err
    assert run("benchmark", "report", name, f"--dir={bench.parent / 'report'}", code=5).err.endswith("index.html\n")
    assert not [key for key in bastion.listed("benchmarks/") if "/report/" in key]
    bastion.hosts.scripts[_matrix(bastion, name).finisher] = runs_for(0)
    done = run("benchmark", "cancel", name, code=0)
    assert f"cancelling 10 jobs of {name}; the tear-down follows" in done.err
    bastion.run_until(lambda: not bastion.listed(keys.JOBS_STATES))
    assert "has already ended, or is being torn down" in run("benchmark", "cancel", name, code=64).err
    key = layout.submitted(*name.split("/"))
    bastion.store.delete(key, generation=bastion.store.get(key).meta.generation)
    done = run("benchmark", "status", name, code=0)
    assert "ended (cancelled)" in done.out
    assert "not all jobs are submitted" not in done.err
    assert [row.split()[4] for row in done.out.splitlines()[4:]] == ["3", "3", "3"]
    assert run("benchmark", "report", name, code=5).err.endswith("/report/index.html\n")


def test_the_finisher_waits_for_a_bucket_that_does_not_answer_and_says_so_once(
    run: Terminal, bastion: Bastion, bench: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bastion.settle(2)
    bench.write_text(text(('up = ["make up"]', "up = []")))
    name = run("benchmark", "run", str(bench), code=0).out.strip()
    faulty = FaultyStore(bastion.store)
    monkeypatch.setattr(connect, "open_root", lambda _url: faulty)
    for key in (layout.matrix(*name.split("/")), layout.submitted(*name.split("/"))):
        faulty.fail_next("get", key=key, times=50)
    done = run("benchmark", "begin", name, code=0)
    assert len(faulty.failed) == 100
    assert done.err.count("trying again") == 2
    assert "all 9 jobs are submitted" in done.err


class _Refusing(ForwardingStore):
    """Refuses what is asked below a prefix until a time."""

    def __init__(self, store: ObjectStore, prefix: str, clock: Clock, *, seconds: float) -> None:
        super().__init__(store)
        self._prefix = prefix
        self._clock = clock
        self._until = clock.monotonic() + seconds

    def _call(self, method: str, key: str, call: Callable[[], _T]) -> _T:
        if key.startswith(self._prefix) and self._clock.monotonic() < self._until:
            raise AccessDenied("the token has expired")
        return super()._call(method, key, call)


@pytest.mark.parametrize("refused", ["matrix.json", "times/down-1"])
def test_a_tear_down_waits_for_a_bucket_that_refuses_it_for_a_while(
    run: Terminal, bastion: Bastion, bench: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refused: str
) -> None:
    """Credentials expired, and are renewed after minutes."""
    bastion.settle(2)
    down = f"touch {tmp_path}/$BASTION_BENCHMARK_TIME"
    bench.write_text(text(('down = ["make down"]', f"down = ['{down}']")))
    name = run("benchmark", "run", str(bench), code=0).out.strip()
    prefix = f"benchmarks/{name}/{refused}"

    def after(seconds: float) -> None:
        refusing = _Refusing(bastion.store, prefix, bastion.clock, seconds=seconds)
        monkeypatch.setattr(connect, "open_root", lambda _url: refusing)

    monkeypatch.setattr(limits, "REFUSED_MAX_SECONDS", 60.0)
    after(50)  # of a user, it is told at once
    assert "the token has expired" in run("benchmark", "finish", name, code=1).err
    monkeypatch.setenv("BASTION_BENCHMARK_DOWN", json.dumps([down]))
    after(90)
    assert "the token has expired" in run("benchmark", "finish", name, code=1).err
    assert not (tmp_path / "1").exists()
    after(50)
    done = run("benchmark", "finish", name, code=0)
    assert done.err.count("trying again") == 1
    assert (tmp_path / "1").exists()


def test_a_finisher_whose_documents_were_deleted_tears_down_all_the_same(
    run: Terminal, bastion: Bastion, bench: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bastion.settle(2)
    bench.write_text(text(('down = ["make down"]', f"down = ['touch {tmp_path}/$BASTION_BENCHMARK_TIME']")))
    name = run("benchmark", "run", str(bench), code=0).out.strip()
    matrix = _matrix(bastion, name)
    bastion.settle(3)
    for key in (layout.matrix(*name.split("/")), layout.bench_file(*name.split("/"))):
        stored = bastion.store.get(key)
        bastion.store.delete(key, generation=stored.meta.generation)
    assert "no benchmark 'matmul' was run" in run("benchmark", "finish", name, code=64).err
    spec = json.loads(bastion.store.get(keys.active(matrix.finisher)).data)
    for variable, value in {
        **spec["env_vars"],
        "BASTION_JOB": matrix.finisher,
        "BASTION_USER_ID": spec["metadata"]["user_id"],
    }.items():
        monkeypatch.setenv(variable, value)
    done = run("benchmark", "finish", name, code=0)
    assert "no results are collected: " in done.err
    assert done.err.count("cancelled matmul-") == 9
    assert (tmp_path / "1").exists()
    assert set(bastion.listed(keys.JOBS_STATES)) == {keys.state(matrix.finisher)}


def test_a_run_that_does_not_exist_is_refused_with_what_there_is(run: Terminal, bastion: Bastion, bench: Path) -> None:
    bastion.settle(2)
    assert "no benchmark 'matmul' was run on this bastion" in run("benchmark", "status", "matmul", code=64).err
    assert "is not a run; write NAME/RUN" in run("benchmark", "status", "../x", code=64).err
    name = run("benchmark", "run", str(bench), code=0).out.strip().partition("/")[2]
    other = "20200102T030405Z-0123abcd"
    assert f"its newest: {name}" in run("benchmark", "cancel", f"matmul/{other}", code=64).err


def test_wait_tells_what_is_missing_and_exits_with_5(run: Terminal, bastion: Bastion, bench: Path) -> None:
    bastion.settle(2)
    bench.write_text(text(("repeats = 3", "repeats = 1")))
    bastion.on_sleep.append(lambda: _end_everything(bastion, whole=False))
    done = run("benchmark", "run", "--wait", str(bench), code=5)
    assert "2 of 3 jobs measured all metrics" in done.err
    assert ": failed: it failed" in done.err


def test_wait_exits_with_0_if_nothing_is_missing(run: Terminal, bastion: Bastion, bench: Path) -> None:
    bastion.settle(2)
    bench.write_text(text(("repeats = 3", "repeats = 1")))
    bastion.on_sleep.append(lambda: _end_everything(bastion, whole=True))
    done = run("benchmark", "run", "--wait", str(bench), code=0)
    assert "3 of 3 jobs measured all metrics" in done.err


def test_a_job_with_lines_that_do_not_count_has_measured_all_the_same(
    run: Terminal, bastion: Bastion, bench: Path
) -> None:
    bastion.settle(2)
    bench.write_text(text(("repeats = 3", "repeats = 1")))
    bastion.on_sleep.append(lambda: _end_everything(bastion, whole=True, remark="line 1 of the results: NaN"))
    done = run("benchmark", "run", "--wait", str(bench), code=0)
    assert "repeat 1: succeeded: line 1 of the results: NaN" in done.err
    assert "3 of 3 jobs measured all metrics" in done.err
    cells = json.loads(run("benchmark", "status", "matmul", "--output=json", code=0).out)["cells"]
    assert [cell["complete"] for cell in cells] == [1, 1, 1]


def _end_everything(bastion: Bastion, *, whole: bool, remark: str = "") -> None:
    """As the finisher would, with a failed job or without."""
    (name,) = measurements.runs(bastion.store, "matmul")
    matrix = documents.read_matrix(bastion.store, "matmul", name)
    for number, cell in enumerate(matrix.cells):
        job = cell.repeats[0].job
        bastion.hosts.scripts[job] = runs_for(0)
        good = whole or number > 0
        found = CellResult(
            cell=cell.cell,
            repeat=1,
            job=job,
            outcome=Outcome.SUCCEEDED if good else Outcome.FAILED,
            reason=remark if good else "it failed",
            values={"seconds": [Value(value=1.0)]} if good else {},
        )
        documents.replace(bastion.store, layout.cell("matmul", name, cell.cell, 1), found.to_bytes())
    bastion.hosts.scripts[matrix.finisher] = runs_for(0)


def test_an_interrupted_run_says_how_to_go_on_and_what_happens_otherwise(
    run: Terminal, bastion: Bastion, bench: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    bastion.settle(2)
    monkeypatch.setattr(Submission, "submit", interrupted)
    done = run("benchmark", "run", str(bench), code=130)
    assert "run the file again to go on, or the run ends by itself (bastion benchmark cancel matmul/" in done.err
