"""What a follower asks of a bucket in the cloud, counted: while nothing happens, while workers write, at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from bastion.client import Client, Ended, FollowOptions, Logged, Noted, StartedAttempt, follow
from bastion.client.concurrently import concurrently
from bastion.client.jobs import overview as client_requests
from bastion.client.logs import reader as log_requests
from bastion.client.logs import segment_reads
from bastion.core.instants import to_rfc3339
from bastion.testing.cluster import BASTION, ROOT, Cluster
from bastion.testing.counting_store import CountingStore
from bastion.testing.scripted_hosts import runs_for

QUOTA = b"""
[toml-schema]
version = "1"
[total_resources]
v4 = 4096
[project_membership]
a = ["alice"]
[project_resources.a]
v4 = 1.0
"""
# A slice by its number of hosts.
TYPES = {1: "tpu-v4-8", 4: "tpu-v4-32", 64: "tpu-v4-512"}
FOR_EVER = 10**9


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that go out at once go out in turn: the counts are the same, and a store in memory needs no threads."""
    for module in (client_requests, log_requests, segment_reads):
        monkeypatch.setattr(module, "concurrently", _in_turn)


def _in_turn(calls: Sequence[Callable[[], object]], *, connections: int) -> list[object]:
    return [answer for call in calls for answer in concurrently([call], connections=1)]


@dataclass(frozen=True)
class RemoteRoot:
    """The simulated bastion's ROOT, as if it lay in the cloud."""

    url: str = ROOT
    bastion: str = BASTION
    local: bool = False


class _Enough(Exception):
    """Ends a following that would go on."""


@dataclass
class Scene:
    """A job on so many hosts of a simulated bastion, and a follower of it whose requests are counted.

    It is the follower's clock, too: each sleep is a step of the bastion.
    """

    hosts: int
    seconds: float = FOR_EVER
    quota: bytes = QUOTA
    act: Callable[[Scene], None] = field(default=lambda _scene: None)
    uid: str = ""
    shown: list[tuple[float, int, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    ended: Ended | None = None
    written: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cluster = Cluster(quota=self.quota)
        self.counting = CountingStore(self.cluster.store)
        self.cluster.hosts.scripts["job"] = runs_for(self.seconds)
        self._stop_at = self._count_from = float("inf")
        self._before = 0

    def now(self) -> float:
        return self.cluster.clock.now()

    def monotonic(self) -> float:
        return self.cluster.clock.monotonic()

    def sleep(self, seconds: float) -> None:
        if self.now() >= self._count_from:
            self._count_from, self._before = float("inf"), self.counting.requests
        self.act(self)
        self.cluster.step(seconds)
        if self.now() >= self._stop_at:
            raise _Enough

    def submit(self) -> None:
        self.uid = self.cluster.submit("job", instance_type=TYPES[self.hosts])

    def start(self) -> Scene:
        self.submit()
        self.cluster.run_until(self.running)
        self.cluster.settle(2)
        return self

    def running(self) -> bool:
        record = self.cluster.record("job")
        return record is not None and record.attempt is not None and record.attempt.running_since is not None

    def write(self, worker: int, text: str, *, attempt: int = 1) -> None:
        seq = self.written[attempt, worker] = self.written.get((attempt, worker), 0) + 1
        line = f"{to_rfc3339(self.now())} stdout F {text}\n"
        run = f"{self.uid}-{attempt}"
        self.cluster.run_keys.write_segment(self.cluster.store, "job", run, worker, seq, line.encode())

    def client(self) -> Client:
        return Client(self.counting, RemoteRoot(), self)

    def follow(self, *, after: float = 0.0, seconds: float = FOR_EVER, what: FollowOptions | None = None) -> int:
        """Follows the job to its end, or for `after` + `seconds`; returns the requests after the first `after`."""
        self._count_from = self.now() + after if after else float("inf")
        self._stop_at = self.now() + after + seconds
        self._before = self.counting.requests
        try:
            for event in follow(self.client(), "job", self.uid, what=what or FollowOptions()):
                match event:
                    case Logged(pieces=pieces):
                        self.shown += [(self.now(), piece.worker, piece.text.decode()) for piece in pieces]
                    case Noted(text=text):
                        self.notes.append(text)
                    case StartedAttempt(run=run):
                        self.attempts.append(run.attempt)
                    case Ended():
                        self.ended = event
        except _Enough:
            pass
        return self.counting.requests - self._before

    def texts(self, worker: int | None = None) -> list[str]:
        return [text for _, of, text in self.shown if worker in (None, of)]


def every(seconds: float, act: Callable[[Scene], None], *, until: float = float("inf")) -> Callable[[Scene], None]:
    """What a scene does so often, from its first sleep on, for `until` seconds."""
    due: list[float] = []

    def step(scene: Scene) -> None:
        if not due:
            due.extend((scene.now(), scene.now() + until))
        while due[0] <= scene.now() and due[0] < due[1]:
            due[0] += seconds
            act(scene)

    return step


def everyone_writes(scene: Scene) -> None:
    for worker in range(scene.hosts):
        scene.write(worker, str(scene.written.get((1, worker), 0) + 1))


# -- nothing happens ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "segments"),
    [(1, 0), (1, 3), (1, 2500), (4, 0), (4, 3), (4, 20_000), (64, 0), (64, 3), (64, 6400)],
)
def test_an_idle_follower_asks_once_in_two_seconds(hosts: int, segments: int) -> None:
    scene = Scene(hosts).start()
    for number in range(segments):
        scene.write(number % hosts, str(number))
    requests = scene.follow(after=60, seconds=600)
    assert 250 <= requests <= 300
    assert sorted(scene.texts(), key=int) == [str(number) for number in range(segments)]
    assert scene.notes == []


def test_an_idle_follower_of_a_waiting_job_asks_once_in_two_seconds() -> None:
    scene = Scene(4, quota=QUOTA.replace(b"4096", b"32"))
    scene.cluster.submit("before", instance_type=TYPES[4])
    scene.cluster.settle(5)
    scene.submit()
    scene.cluster.settle(5)
    assert scene.cluster.status("job") == "PENDING"
    assert 125 <= scene.follow(after=20, seconds=300) <= 150
    assert 125 <= scene.follow(after=20, seconds=300, what=FollowOptions(logs=False)) <= 150


def test_a_follower_of_a_job_that_no_daemon_reads_asks_once_in_two_seconds_and_says_so() -> None:
    scene = Scene(1)
    scene.submit()
    scene.cluster.step = scene.cluster.clock.advance  # type: ignore[method-assign, assignment]
    assert 250 <= scene.follow(after=60, seconds=600) <= 300
    assert scene.notes == [
        "no daemon has ever run here; running jobs continue, and other jobs wait until a daemon runs again"
    ]


def test_one_worker_alone_is_followed_by_single_reads() -> None:
    scene = Scene(64).start()
    for number in range(6400):
        scene.write(number % 64, str(number))
    assert 250 <= scene.follow(after=60, seconds=600, what=FollowOptions(worker=7)) <= 300
    assert scene.texts() == [str(number) for number in range(7, 6400, 64)]


def test_a_daemon_that_dies_is_noticed_by_an_idle_follower() -> None:
    scene = Scene(4).start()
    scene.cluster.step = scene.cluster.clock.advance  # type: ignore[method-assign, assignment]
    died = scene.now()
    scene.act = lambda scene: moments.append(scene.now()) if len(scene.notes) > len(moments) else None
    moments: list[float] = []
    requests = scene.follow(seconds=600)
    assert ["the daemon has not renewed its lease for" in note for note in scene.notes] == [True]
    assert 90 <= moments[0] - died <= 150
    assert requests <= 300 + 10


# -- workers write -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "before", "rounds", "slack"),
    [(1, 0, 60, 1), (1, 2000, 60, 1), (4, 0, 60, 1), (4, 4000, 60, 1), (64, 0, 10, 1.05), (64, 6400, 30, 1.15)],
)
def test_an_active_run_costs_its_segments_and_the_slots(hosts: int, before: int, rounds: int, slack: float) -> None:
    """All workers write a segment every 10 s."""
    scene = Scene(hosts).start()
    for _ in range(before // hosts):
        everyone_writes(scene)
    scene.act = every(10, everyone_writes, until=60 + 10 * rounds)
    requests = scene.follow(after=60, seconds=10 * rounds)
    assert requests <= slack * (hosts * rounds + 5 * rounds)
    for worker in range(hosts):
        numbers = [int(text) for text in scene.texts(worker)]
        assert numbers == list(range(1, len(numbers) + 1))


def test_workers_of_a_long_run_that_write_each_at_its_own_moments_are_all_kept_up_with() -> None:
    scene = Scene(64).start()
    for _ in range(100):
        everyone_writes(scene)
    began = scene.now()
    written: dict[str, float] = {}

    def act(scene: Scene) -> None:
        for worker in range(64):
            while scene.written[1, worker] - 100 < (scene.now() - began - worker * 10 / 64) / 10:
                text = f"{worker}/{scene.written[1, worker]}"
                written[text] = scene.now()
                scene.write(worker, text)

    scene.act = act
    requests = scene.follow(after=60, seconds=300)
    assert requests <= 1.6 * (64 * 30 + 150)
    waits = sorted(at - written[text] for at, _, text in scene.shown if text in written)
    assert len(waits) >= 64 * 30
    assert waits[len(waits) // 2] <= 8
    assert waits[-1] <= 40


def test_one_talker_among_silent_workers_does_not_cost_a_look_at_all_of_them_each_time() -> None:
    scene = Scene(64).start()
    for _ in range(100):
        everyone_writes(scene)
    scene.act = every(10, lambda scene: scene.write(0, str(scene.written[1, 0] + 1)))
    requests = scene.follow(after=120, seconds=600)
    assert requests <= 300 + 60 + 60 * 10
    assert len(scene.texts(0)) >= 100 + 60


def test_a_worker_that_writes_faster_than_it_is_looked_at_is_kept_up_with() -> None:
    scene = Scene(1, act=every(0.1, everyone_writes)).start()
    requests = scene.follow(after=20, seconds=200)
    behind = scene.written[1, 0] - len(scene.texts())
    assert behind <= 10 * 2 * 4
    assert requests <= 10 * 200 + 100 * 6


def lonely_line(scene: Scene, worker: int) -> float:
    """Seconds until a line of a long-silent worker is shown."""
    scene.follow(after=100, seconds=700)
    written, shown = (next(at for at, _, text in scene.shown if text == mark) for mark in ("written", "lonely"))
    return shown - written


@pytest.mark.parametrize("talker", [False, True])
def test_a_lonely_line_of_one_of_64_long_silent_workers_waits_for_minutes_at_most(talker: bool) -> None:
    latest = 0.0
    for offset in (0, 70, 140):
        scene = Scene(64).start()
        for _ in range(100):
            everyone_writes(scene)
        began = scene.now()

        def act(scene: Scene, began: float = began, offset: int = offset) -> None:
            if scene.now() >= began + 200 + offset and scene.written[1, 13] == 100:
                scene.shown.append((scene.now(), -1, "written"))
                scene.write(13, "lonely")
            if talker and scene.now() % 10 < 2:
                scene.write(0, "talk")

        scene.act = act
        latest = max(latest, lonely_line(scene, 13))
    assert 20 <= latest <= (360 if talker else 240)


# -- the end -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", [1, 4, 64])
def test_from_the_first_line_to_the_last_everything_is_shown(hosts: int) -> None:
    """Some workers begin late; the last lines appear while the job ends."""
    scene = Scene(hosts, seconds=300)
    began = scene.now()

    def act(scene: Scene) -> None:
        if not scene.running():
            return
        for worker in range(hosts):
            if scene.now() - began > 40 * (worker % 4) and int(scene.now()) % (worker % 7 + 1) == 0:
                scene.write(worker, str(scene.written.get((1, worker), 0) + 1))

    scene.act = act
    scene.submit()
    scene.follow()
    assert scene.ended is not None
    assert scene.ended.exit_code == 0
    assert scene.attempts == [1]
    for worker in range(hosts):
        assert scene.texts(worker) == [str(n) for n in range(1, scene.written[1, worker] + 1)]
    assert scene.written[1, 0] > 50


def test_the_end_of_a_job_shows_what_no_look_had_found_yet() -> None:
    scene = Scene(64, seconds=250).start()
    for _ in range(100):
        everyone_writes(scene)
    last: list[float] = []

    def act(scene: Scene) -> None:
        if not last and not scene.running():
            last.append(scene.now())
            everyone_writes(scene)

    scene.act = act
    scene.follow()
    assert scene.ended is not None
    for worker in range(64):
        assert scene.texts(worker) == [str(n) for n in range(1, 102)]


def test_attempts_follow_one_another_and_none_is_skipped() -> None:
    scene = Scene(4).start()
    written: set[int] = set()

    def write() -> None:
        record = scene.cluster.record("job")
        number = record.attempt.number if record and record.attempt and scene.running() else 0
        for worker in range(4 if number not in written else 0):
            for _ in range(3 if number else 0):
                scene.write(worker, f"{number}", attempt=number)
        written.add(number)

    write()
    # The follower comes when two attempts are over, and a third one has just begun.
    moments = iter((30.0, 60.0))
    next_at = scene.now() + next(moments)

    def act(scene: Scene) -> None:
        nonlocal next_at
        write()
        if scene.now() >= next_at:
            next_at = scene.now() + next(moments, FOR_EVER)
            for node in list(scene.cluster.slices.live_requests()):
                scene.cluster.slices.lose(node.ref.name)

    scene.act = act
    scene.follow(seconds=200)
    assert scene.attempts == [1, 2, 3]
    # Each of the four hosts that went away leaves a gap line.
    gaps = [text for text in scene.texts() if "the host stopped" in text]
    assert len(gaps) == 8
    assert [text for text in scene.texts() if text not in gaps] == ["1"] * 12 + ["2"] * 12 + ["3"] * 12


def test_the_whole_life_of_a_job_on_a_quiet_bastion_costs_little_more_than_the_slots() -> None:
    scene = Scene(4, seconds=100)
    scene.submit()
    began = scene.now()
    requests = scene.follow()
    assert scene.ended is not None
    assert requests <= (scene.now() - began) / 2 + 60
