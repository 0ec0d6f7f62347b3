"""A host's order, report and beat, one turn at a time."""

from random import Random

import pytest

from bastion.agent.bucket_link import BucketLink
from bastion.agent.identity import HostIdentity
from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import AgentArguments, HostPhase, Order, OrderAction, Report
from bastion.core.run_keys import RunKey
from bastion.testing.counting_store import CountingStore
from bastion.testing.faulty_store import Fault, FaultyStore
from bastion.testing.manual_clock import ManualClock
from bastion.testing.memory_store import MemoryStore

RUN = "abcdefghij-1"
KEY = RunKey(b"r" * 32)


class Bench:
    """A link on a faulty store and a clock that the test moves."""

    def __init__(self) -> None:
        self.memory = MemoryStore()
        self.counting = CountingStore(self.memory)
        self.store = FaultyStore(self.counting)
        self.clock = ManualClock()
        self.changes = 0
        self.link = self.make_link()

    def make_link(self) -> BucketLink:
        arguments = AgentArguments(
            root="/b/t-bastion",
            bastion="t-bastion",
            job="j",
            run=RUN,
            run_key=KEY.text,
            poll_seconds=5.0,
            beat_seconds=30.0,
        )
        identity = HostIdentity(arguments=arguments, worker=0)
        return BucketLink(self.store, identity, clock=self.clock, rng=Random(1), on_change=self.changed)

    def changed(self) -> None:
        self.changes += 1

    def order(self, action: OrderAction = OrderAction.RUN, run: str = RUN, *, number: int = 1) -> None:
        meta = self.memory.head(keys.order(RUN))
        data = Order(run=run, action=action, command="c", try_number=number).to_bytes()
        self.memory.put(keys.order(RUN), data, generation=0 if meta is None else meta.generation)

    def live(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            self.clock.advance(min(max(self.link.step(), 0.001), end - self.clock.monotonic()))

    def report(self) -> Report:
        return protocol.read_signed(Report, self.memory.get(keys.report(RUN, 0)).data, KEY.public)


def report(phase: HostPhase) -> Report:
    return Report(run=RUN, host=0, phase=phase)


def test_the_first_turn_beats_reports_and_reads_the_order():
    bench = Bench()
    bench.order()
    bench.link.publish(report(HostPhase.WAITING))
    assert not bench.link.settled
    bench.link.step()
    assert bench.link.settled
    assert bench.report().phase is HostPhase.WAITING
    assert bench.link.order.action is OrderAction.RUN
    assert bench.memory.head(keys.beat(RUN, 0)) is not None
    assert bench.changes == 2


def test_beats_come_each_period_give_or_take_a_fifth():
    bench = Bench()
    generations = set()
    for _ in range(300):
        bench.live(1.0)
        generations.add(bench.memory.head(keys.beat(RUN, 0)).generation)
    assert 9 <= len(generations) <= 13


def test_an_unchanged_order_costs_no_download():
    bench = Bench()
    bench.order()
    bench.live(60.0)
    assert bench.counting.calls["get"] == 1
    bench.order(OrderAction.STOP)
    bench.live(7.0)
    assert bench.link.order.action is OrderAction.STOP
    assert bench.counting.calls["get"] == 2


def test_a_missing_foreign_or_broken_order_leaves_the_last_one_in_force():
    bench = Bench()
    bench.order()
    bench.live(7.0)
    bench.order(OrderAction.STOP, run="otherother-1")
    bench.live(7.0)
    bench.memory.put(keys.order(RUN), b"{", generation=bench.memory.head(keys.order(RUN)).generation)
    bench.live(7.0)
    bench.memory.delete(keys.order(RUN), generation=bench.memory.head(keys.order(RUN)).generation)
    bench.live(7.0)
    assert bench.link.order.action is OrderAction.RUN


def test_time_without_an_order_counts_from_the_last_successful_look():
    bench = Bench()
    bench.order()
    bench.live(60.0)
    assert bench.link.seconds_without_order < 7.0
    bench.store.fail_next("head", times=1000)
    bench.live(600.0)
    assert 600.0 <= bench.link.seconds_without_order < 607.0


def test_a_deleted_order_counts_as_not_read():
    bench = Bench()
    bench.live(100.0)
    assert bench.link.seconds_without_order == pytest.approx(100.0)


@pytest.mark.parametrize("fault", Fault)
def test_a_report_is_written_until_it_is_stored(fault: Fault):
    bench = Bench()
    bench.store.fail_next("put", key=keys.report(RUN, 0), fault=fault, times=5)
    bench.link.publish(report(HostPhase.WAITING))
    bench.live(1.0)
    bench.link.publish(report(HostPhase.EXITED))
    bench.live(120.0)
    assert bench.link.settled
    assert bench.report().phase is HostPhase.EXITED


def test_a_failed_beat_is_repeated_before_the_daemon_gives_the_host_up():
    bench = Bench()
    bench.store.fail_next("put", key=keys.beat(RUN, 0), times=3)
    bench.live(30.0)
    assert bench.memory.head(keys.beat(RUN, 0)) is not None


def test_a_later_agent_writes_over_its_predecessors_report_and_beat():
    bench = Bench()
    assert bench.link.load_report() is None
    bench.link.publish(report(HostPhase.RUNNING))
    bench.link.step()
    bench.link = bench.make_link()
    earlier = bench.link.load_report()
    assert earlier is not None
    assert earlier.phase is HostPhase.RUNNING
    bench.link.publish(report(HostPhase.FAILED))
    bench.link.step()
    assert bench.report().phase is HostPhase.FAILED


def test_after_the_last_word_orders_are_not_read_and_beats_go_on():
    bench = Bench()
    bench.order()
    bench.live(7.0)
    bench.link.stop_polling()
    before = bench.memory.head(keys.beat(RUN, 0)).generation
    bench.order(OrderAction.STOP)
    bench.live(60.0)
    assert bench.link.order.action is OrderAction.RUN
    assert bench.memory.head(keys.beat(RUN, 0)).generation > before


@pytest.mark.parametrize("action", [OrderAction.RUN, OrderAction.RESTART])
def test_an_order_for_an_earlier_try_does_not_count(action: OrderAction):
    bench = Bench()
    bench.order(number=2)
    bench.live(1.0)
    bench.order(action, number=1)
    bench.live(20.0)
    assert (bench.link.order.action, bench.link.order.try_number) == (OrderAction.RUN, 2)


def test_an_order_to_stop_counts_whatever_its_try():
    bench = Bench()
    bench.order(number=2)
    bench.live(1.0)
    bench.order(OrderAction.STOP, number=1)
    bench.live(20.0)
    assert bench.link.order.action is OrderAction.STOP


def test_an_order_was_written_when_the_bucket_says_but_not_before_the_last_look():
    bench = Bench()
    bench.memory = MemoryStore(now=bench.clock.now)
    bench.store = FaultyStore(bench.memory)
    bench.order()
    written = bench.clock.monotonic()
    bench.clock.advance(100.0)
    bench.link = bench.make_link()
    bench.link.step()  # the first look of this agent: only the bucket knows
    assert bench.link.order_written_at == pytest.approx(written)
    bench.live(30.0)
    before = bench.clock.monotonic()
    bench.memory.put(keys.order(RUN), b"{", generation=bench.memory.head(keys.order(RUN)).generation)
    bench.live(30.0)  # unreadable: not an order
    bench.order(OrderAction.RESTART, number=2)
    written = bench.clock.monotonic()
    bench.live(7.0)
    assert bench.link.order_written_at == pytest.approx(written)
    assert written > before


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_bucket_whose_clock_jumps_moves_an_order_by_at_most_one_look(step: float):
    bench = Bench()
    wrong = [0.0]
    bench.memory = MemoryStore(now=lambda: bench.clock.now() + wrong[0])
    bench.store = FaultyStore(bench.memory)
    bench.link = bench.make_link()
    bench.link.step()
    bench.live(10.0)
    wrong[0] = step
    bench.order()
    written = bench.clock.monotonic()
    bench.live(7.0)
    assert abs(bench.link.order_written_at - written) <= 6.0


def forge(bench: Bench, data: bytes) -> None:
    """What a host of another run may do to a report; an empty text deletes it."""
    key = keys.report(RUN, 0)
    present = bench.memory.head(key)
    if not data:
        bench.memory.delete(key, generation=present.generation)
    else:
        bench.memory.put(key, data, generation=present.generation if present else 0)


FORGED = Report(run=RUN, host=0, phase=HostPhase.EXITED, exit_code=0, sequence=2**50)


@pytest.mark.parametrize("data", [b"", b"{", FORGED.to_bytes(), protocol.sign(FORGED, RunKey(b"x" * 32)).to_bytes()])
@pytest.mark.parametrize("phase", [HostPhase.RUNNING, HostPhase.EXITED])
def test_a_report_that_another_host_replaced_or_deleted_is_written_again(phase: HostPhase, data: bytes):
    bench = Bench()
    bench.link.publish(report(phase))
    bench.live(40)
    before = bench.report()
    forge(bench, data)
    bench.live(40)
    assert bench.report().phase is phase
    assert bench.report().sequence > before.sequence
    bench.live(40)
    assert bench.memory.head(keys.report(RUN, 0)).generation == bench.link._report_generation


@pytest.mark.parametrize("data", [b"", b"{", FORGED.to_bytes()])
def test_the_sequence_rises_over_agents_whose_report_is_gone_or_forged(data: bytes):
    bench = Bench()
    for _ in range(3):
        bench.link.publish(report(HostPhase.WAITING))
        bench.link.step()
    before = bench.report()
    forge(bench, data)
    bench.clock.advance(5)
    bench.link = bench.make_link()
    assert bench.link.load_report() is None
    bench.link.publish(report(HostPhase.RUNNING))
    bench.link.step()
    assert bench.report().sequence > before.sequence


def test_a_later_agent_guards_the_final_report_of_its_predecessor():
    bench = Bench()
    bench.link.publish(report(HostPhase.EXITED))
    bench.link.step()
    bench.link = bench.make_link()
    bench.link.load_report()
    assert bench.link.settled
    forge(bench, FORGED.to_bytes())
    bench.live(40)
    assert bench.report().phase is HostPhase.EXITED


def test_looking_at_the_report_costs_one_request_a_heartbeat():
    bench = Bench()
    bench.link.publish(report(HostPhase.RUNNING))
    bench.link.stop_polling()
    bench.live(31)
    bench.counting.reset()
    bench.live(3000)
    assert bench.counting.calls["head"] == bench.counting.calls["put"] > 80
