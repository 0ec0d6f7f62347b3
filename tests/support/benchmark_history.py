"""A benchmark's run on a simulated bastion, with seeded misfortune: who is killed when, and what is lost.

One thread: between two requests of a client the world may go on, or the client may die; the finisher may die between
two of its own.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bastion.benchmark import documents, measurements
from bastion.benchmark.begin import Begin
from bastion.benchmark.collect import JobValues
from bastion.benchmark.finish import Finish, live_jobs
from bastion.benchmark.layout import Matrix, Value
from bastion.benchmark.submit import Submission
from bastion.client import Client
from bastion.client.jobs.job_info import Stage
from bastion.core.errors import Refused, StoreError, StoreUnavailable
from bastion.core.model.lifecycle import Status
from bastion.ports import ObjectStore
from bastion.testing.cluster import QUOTA, Cluster
from bastion.testing.scripted_hosts import runs_for
from bastion.testing.slow_bucket import SlowBucket
from tests.support.bench_files import PLACE, SimulatedRoot, benchmark

FILE = benchmark(
    ("repeats = 3", "repeats = 2\nparallel = 2"), ('"20m"', '"90s"'), ('deadline = "6h"', 'deadline = "15m"')
)
LITTLE = QUOTA.replace(b"v4 = 64", b"v4 = 8")
STEP_SECONDS = 5.0
# The try after the last has to live.
FINISHER_DEATHS_MAX = 2


class Killed(BaseException):
    """`kill -9`."""


@dataclass(frozen=True, slots=True)
class Line:
    """One start of a command line of `up` or `down`."""

    line: str
    time: int
    at: float
    running: tuple[str, ...]  # members whose command ran then


@dataclass(slots=True)
class _Program:
    """A command line that ends after some looks at it."""

    looks: int
    code: int

    def poll(self) -> int | None:
        self.looks -= 1
        return self.code if self.looks <= 0 else None

    def end(self) -> None:
        pass


@dataclass(slots=True)
class Run:
    """What happened to one run."""

    matrix: Matrix
    lines: list[Line] = field(default_factory=list)
    steps: Begin | Finish | None = None
    incarnation: int = 0
    cleanups: int = 0
    deaths: int = 0

    @property
    def jobs(self) -> list[str]:
        return [each.job for cell in self.matrix.cells for each in cell.repeats]

    def of(self, line: str) -> list[Line]:
        return [each for each in self.lines if each.line == line]


class History:
    """One seeded history; `live` goes through it, `check` says what must hold after it.

    Attributes:
        events: What happened, for the message of a failed check.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.runs: dict[str, Run] = {}
        self.events: list[str] = []
        self._daemon_dies_in = 0
        self.cluster = self._cluster()
        self.client = self._client(self.cluster.store)
        self.random_fates()

    def _cluster(self) -> Cluster:
        cluster = Cluster()
        way = SlowBucket(cluster.store, cluster.clock).way()
        way.moment = self._daemon_moment
        cluster._daemon_store = way
        cluster.daemon.close()
        cluster.daemon = cluster.new_daemon()
        return cluster

    def _client(self, store: ObjectStore) -> Client:
        return Client(store, SimulatedRoot(), self.cluster.clock)

    def random_fates(self) -> None:
        draw = self.random.random
        self.plan: list[tuple[int, Callable[[], None]]] = []
        self.client_fate = self.random.choice(("fine", "fine", "killed", "killed", "stopped", "twice"))
        self.again_after = self.random.choice((1, 10, 100, 200)) if draw() < 0.8 else None
        if draw() < 0.3:
            self.plan.append((self.random.randint(1, 120), self._cancel))
        if draw() < 0.3:
            begins = self.random.randint(1, 40)
            self.plan.append((begins, lambda: self._quota(LITTLE)))
            self.plan.append((begins + self.random.choice((5, 20, 300)), lambda: self._quota(QUOTA)))
        for _ in range(self.random.choice((0, 0, 1, 1, 2, 4))):
            self.plan.append((self.random.randint(0, 60), self._arm_daemon))
        for _ in range(self.random.choice((0, 0, 1, 2, 4))):
            self.plan.append((self.random.randint(0, 60), self._lose_slice))
        for _ in range(self.random.choice((0, 0, 0, 1, 2))):
            self.plan.append((self.random.randint(0, 80), self._lose_host))
        self.finisher_dies = self.random.choice((0.0, 0.0, 0.01, 0.05))
        self.plan.sort(key=lambda each: each[0])

    # -- misfortune -----------------------------------------------------------------------------------------

    def _note(self, what: str) -> None:
        self.events.append(f"{self.cluster.clock.monotonic():.0f} {what}")

    def _daemon_moment(self, _method: str, _key: str) -> None:
        if self._daemon_dies_in > 0:
            self._daemon_dies_in -= 1
            if self._daemon_dies_in == 0:
                raise Killed

    def _arm_daemon(self) -> None:
        self._daemon_dies_in = self.random.randint(1, 25)

    def _lose_slice(self) -> None:
        gangs = self.cluster.slices.existing_requests()
        if gangs:
            name = self.random.choice(gangs).ref.name
            self._note(f"lost slice {name}")
            with contextlib.suppress(KeyError):
                self.cluster.slices.lose(name)

    def _lose_host(self) -> None:
        """The agent of a job on the bastion dies."""
        gangs = self.cluster.bastion_host.existing_requests()
        for run in self.runs.values():
            for gang in gangs:
                if run.incarnation and run.deaths < FINISHER_DEATHS_MAX:
                    run.deaths += 1
                    self._note(f"lost the bastion's {gang.ref.name}")
                    with contextlib.suppress(KeyError):
                        self.cluster.bastion_host.lose(gang.ref.name)
                    return

    def _quota(self, data: bytes) -> None:
        self._note("quota changed")
        self.cluster.write_quota(data)

    def _cancel(self) -> None:
        """As `bastion benchmark cancel`."""
        for run in self.runs.values():
            self._note(f"cancel {run.matrix.run}")
            for job in (run.matrix.finisher, *sorted(live_jobs(self.client, run.matrix))):
                with contextlib.suppress(Refused):
                    self.client.cancel(job, by="alice")

    # -- programs -------------------------------------------------------------------------------------------

    def _run_client(self, fate: str) -> None:
        """As `bastion benchmark run`: killed, or stopped for long, at one of its requests."""
        at, calls = self.random.randint(1, 90), 0

        def moment(_method: str, _key: str) -> None:
            nonlocal calls
            calls += 1
            if calls == at and fate == "killed":
                self._note(f"client killed at request {at}")
                raise Killed
            if calls == at and fate == "stopped":
                self._note(f"client stopped at request {at}")
                self._pass(self.random.choice((5, 130, 200)))
            if calls == at and fate == "twice":
                self._note(f"second client at request {at}")
                self._run_client("fine")
            if self.random.random() < 0.05:
                self._pass(1)

        way = SlowBucket(self.cluster.store, self.cluster.clock).way()
        way.moment = moment
        try:
            submission = Submission(self._client(way), FILE, PLACE, None)
            submission.submit()
            self._note(f"submitted {submission.matrix.run}, continued: {submission.continued}")
        except Killed:
            pass
        except Refused as error:
            self._note(f"client refused: {error}")

    def _finisher(self, run: Run) -> int | None:
        """The command of the finisher's present host, or its cleanup command: one step."""
        job = run.matrix.finisher
        began = sum(1 for each in self.cluster.hosts.began if each.job == job)
        if began != run.incarnation:
            run.incarnation = began
            run.steps = self._steps(run)
        assert run.steps is not None
        try:
            code = run.steps.step()
        except Killed:
            run.deaths += 1
            self._note(f"{type(run.steps).__name__} killed")
            return 137
        except StoreUnavailable:
            return None
        for line in run.steps.said:
            self._note(line)
        run.steps.said.clear()
        return code

    def _steps(self, run: Run) -> Begin | Finish:
        way = SlowBucket(self.cluster.store, self.cluster.clock).way()

        def moment(_method: str, _key: str) -> None:
            if run.deaths < FINISHER_DEATHS_MAX and self.random.random() < self.finisher_dies:
                raise Killed

        way.moment = moment
        client = self._client(way)
        record = self.cluster.record(run.matrix.finisher)
        assert record is not None
        if record.status is not Status.CLEANING:
            return Begin(client, run.matrix, ["up"], _Programs(self, run))
        run.cleanups += 1
        return Finish(
            client,
            run.matrix,
            ["down"],
            _Programs(self, run),
            try_number=run.cleanups,
            read_values=lambda _job, _uid, _hosts: JobValues(values={"seconds": [Value(value=1.0)]}),
            report=lambda: None,
        )

    # -- the world ------------------------------------------------------------------------------------------

    def _pass(self, steps: int) -> None:
        for _ in range(steps):
            for name in measurements.runs(self.cluster.store, FILE.name):
                if name not in self.runs:
                    with contextlib.suppress(StoreError):
                        self._adopt(Run(documents.read_matrix(self.cluster.store, FILE.name, name)))
            try:
                self.cluster.step(STEP_SECONDS)
            except Killed:
                self._note("daemon killed")
                self.cluster.restart_daemon()

    def _adopt(self, run: Run) -> None:
        self.runs[run.matrix.run] = run
        scripts = self.cluster.hosts.scripts
        scripts[run.matrix.finisher] = lambda _host, _elapsed: self._finisher(run)
        for job in run.jobs:
            fate = self.random.random()
            if fate < 0.8:
                scripts[job] = runs_for(self.random.choice((2, 10, 30)))
            elif fate < 0.9:
                scripts[job] = runs_for(5, code=3)
            # Others hang, until `max_run` ends them.

    def live(self) -> None:
        """Go through the history to its end."""
        self._run_client(self.client_fate)
        plan = list(self.plan)
        again = self.again_after
        for step in range(2000):
            while plan and plan[0][0] <= step:
                plan.pop(0)[1]()
            if again is not None and step >= again:
                again = None
                self._run_client("fine")
            self._pass(1)
            if not plan and again is None and all(map(self._over, self.runs.values())):
                return
        raise AssertionError(f"seed {self.seed} does not end: {self.events}; {self.cluster.describe()}")

    def _over(self, run: Run) -> bool:
        info = self.client.look(run.matrix.finisher)
        return (info is None or info.stage is Stage.COMPLETED) and not live_jobs(self.client, run.matrix)

    # -- what must hold -------------------------------------------------------------------------------------

    def check(self) -> None:
        self._daemon_dies_in = 0
        self.cluster.outlive_late_requests()
        assert self.cluster.slices.list() == [], self.told()
        assert list(self.cluster.bastion_host.list()) == [], self.told()
        for run in self.runs.values():
            self._check_run(run)

    def _check_run(self, run: Run) -> None:
        began = [each for each in self.cluster.hosts.began if each.job in run.jobs]
        jobs_of_names = {(each.job, each.run.partition("-")[0]) for each in began}
        assert len(jobs_of_names) == len({each.job for each in began}), self.told()
        downs, ups = run.of("down"), run.of("up")
        for lines in (downs, ups):
            assert [each.time for each in lines] == sorted({each.time for each in lines}), self.told()
        if not run.incarnation:
            assert not began, self.told()
            return
        assert downs, self.told()
        assert not any(each.running for each in downs), self.told()
        assert all(each.at <= downs[-1].at for each in began), self.told()
        assert not began or ups, self.told()
        assert all(each.at >= ups[0].at for each in began), self.told()
        for cell in measurements.read_run(self.cluster.store, run.matrix.name, run.matrix.run).cells:
            for each in cell.jobs:
                assert each.result is not None, (cell.cell, each.repeat, self.told())
                assert each.values or each.result.reason, (cell.cell, each.repeat, self.told())

    def told(self) -> str:
        return "\n".join((f"seed {self.seed}", *self.events, self.cluster.describe()))


class _Programs:
    def __init__(self, history: History, run: Run) -> None:
        self._history = history
        self._run = run

    def start(self, line: str, variables: Mapping[str, str]) -> _Program:
        cluster, draw = self._history.cluster, self._history.random
        running = tuple(job for job in self._run.jobs if cluster.hosts.live(job))
        time = int(variables["BASTION_BENCHMARK_TIME"])
        self._run.lines.append(Line(line, time, cluster.clock.now(), running))
        fails = self._run.deaths < FINISHER_DEATHS_MAX and draw.random() < 0.1
        self._run.deaths += fails
        return _Program(draw.randint(1, 4), 1 if fails else 0)
