"""The thread that talks to the bucket for a host: reads its order, writes its report and its heartbeat.

A store call may hang for a minute; the loop that watches the command reads the state that this thread saw last.

Invariants:
* The bucket ends up with the last published report. Writes are retried forever, over whatever another host wrote there;
  with each heartbeat the host looks whether its report still stands.
* The last valid order stays in force if a later one is missing, unreadable or of another run, or asks for an earlier
  try. An order to stop is always obeyed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from random import Random

from bastion.agent.backoff import Backoff, jittered
from bastion.agent.identity import HostIdentity
from bastion.core import limits
from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import Order, OrderAction, Report
from bastion.core.errors import InvalidDocument, NotFound, ObjectTooLarge, StoreError
from bastion.ports import Clock, ObjectStore

_log = logging.getLogger(__name__)


class BucketLink:
    """One host's order, report and heartbeat."""

    def __init__(
        self,
        store: ObjectStore,
        identity: HostIdentity,
        *,
        clock: Clock,
        rng: Random,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change`: called in the link's thread when the order changed or a report is stored."""
        arguments = identity.arguments
        self._store = store
        self._run = arguments.run
        self._host = identity.host
        self._run_key = identity.run_key
        self._sequence = 0  # of the last report that this host wrote, or found of itself
        self._poll_seconds = arguments.poll_seconds
        self._heartbeat_seconds = arguments.beat_seconds
        self._order_key = keys.order(arguments.run)
        self._report_key = keys.report(arguments.run, identity.host)
        self._heartbeat_key = keys.beat(arguments.run, identity.host)
        self._clock = clock
        self._rng = rng
        self._on_change = on_change
        now = clock.monotonic()
        self._order: Order | None = None
        self._order_generation = 0
        self._bad_generation = 0  # of an unreadable order: not downloaded again
        self._order_read_at = now
        self._order_written_at = now
        self._looked_at: float | None = None  # before this host knew of the present order
        self._bucket_ahead: float | None = None  # of the bucket's clock to the monotonic one
        self._order_due: float | None = now
        self._wanted: Report | None = None
        self._stored: Report | None = None
        self._report_generation: int | None = None
        self._report_due = now
        self._heartbeat_generation: int | None = None
        self._heartbeat_due = now
        last_seconds = max(1.0, min(30.0, arguments.poll_seconds * 6))
        self._order_backoff = Backoff(rng, first_seconds=arguments.poll_seconds, last_seconds=last_seconds)
        self._report_backoff = Backoff(rng, last_seconds=last_seconds)
        self._also_look: Callable[[], None] | None = None
        self._stopping = False
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="bucket-link", daemon=True)

    @property
    def order(self) -> Order | None:
        return self._order

    @property
    def order_written_at(self) -> float:
        """When the order in force was written, in monotonic seconds: by the bucket's clock, as this host's own writes
        show it, but not before an earlier look."""
        return self._order_written_at

    @property
    def seconds_without_order(self) -> float:
        """Seconds since the order was last seen in the bucket, or since this link was made."""
        return self._clock.monotonic() - self._order_read_at

    @property
    def settled(self) -> bool:
        return self._stored is self._wanted

    def publish(self, report: Report) -> None:
        """Make this the host's report. Does not block."""
        self._wanted = report
        self._report_due = self._clock.monotonic()
        self._changed.set()

    def also_look(self, look: Callable[[], None]) -> None:
        """Call it with each heartbeat from now on, instead of the one before. It may raise StoreError."""
        self._also_look = look

    def stop_polling(self) -> None:
        """Stop reading orders, after this host's last report. Heartbeats continue."""
        self._order_due = None

    def load_report(self) -> Report | None:
        """The report that an earlier agent of this host left; None if there is no readable one. Raises StoreError."""
        try:
            stored = self._store.get(self._report_key, max_bytes=limits.REPORT_MAX_BYTES)
        except NotFound:
            self._report_generation = 0
            return None
        except ObjectTooLarge as error:
            _log.warning("%s", error)
            meta = self._store.head(self._report_key)
            self._report_generation = meta.generation if meta else 0
            return None
        self._report_generation = stored.meta.generation
        try:
            report = protocol.read_signed(Report, stored.data, self._run_key.public)
        except InvalidDocument as error:
            _log.warning("%s: %s", self._report_key, error)
            return None
        if (report.run, report.host) != (self._run, self._host):
            return None
        self._sequence = max(self._sequence, report.sequence)
        self._wanted = self._stored = report
        return report

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current store operation, without waiting for it."""
        self._stopping = True
        self._changed.set()

    def step(self) -> float:
        """Do everything that is due, without waiting; return the seconds until the next duty."""
        if self._wanted is not self._stored and self._clock.monotonic() >= self._report_due:
            self._write_report()
        if self._clock.monotonic() >= self._heartbeat_due:
            self._heartbeat()
        if self._order_due is not None and self._clock.monotonic() >= self._order_due:
            self._read_order()
        due = [self._heartbeat_due]
        if self._order_due is not None:
            due.append(self._order_due)
        if self._wanted is not self._stored:
            due.append(self._report_due)
        return max(0.0, min(due) - self._clock.monotonic())

    def _work(self) -> None:
        while not self._stopping:
            self._changed.clear()
            delay = self.step()
            if not self._stopping:
                self._changed.wait(delay)

    def _write_report(self) -> None:
        report = self._wanted
        assert report is not None
        try:
            if self._report_generation is None:
                self._report_generation = self._generation(self._report_key)
            # The time, too, because an earlier report may be gone; a later agent of this host goes on above it.
            self._sequence = max(self._sequence + 1, int(self._clock.now() * 1000))
            signed = protocol.sign(report.model_copy(update={"sequence": self._sequence}), self._run_key)
            meta = self._store.put(self._report_key, signed.to_bytes(), generation=self._report_generation)
        except StoreError as error:
            # The object is an older report, or this one, or what a host of another run wrote over it.
            self._report_generation = None
            delay = self._report_backoff.next()
            self._report_due = self._clock.monotonic() + delay
            _log.warning("the report could not be stored; retrying in %.1f s: %s", delay, error)
            return
        self._report_generation = meta.generation
        self._bucket_ahead = meta.updated - self._clock.monotonic()
        self._stored = report
        self._report_backoff.reset()
        self._on_change()

    def _heartbeat(self) -> None:
        period = self._heartbeat_seconds
        try:
            if self._heartbeat_generation is None:
                self._heartbeat_generation = self._generation(self._heartbeat_key)
            meta = self._store.put(self._heartbeat_key, b"", generation=self._heartbeat_generation)
            self._heartbeat_generation = meta.generation
            self._bucket_ahead = meta.updated - self._clock.monotonic()
            self._look_at_report()
            self._look_at_others()
        except StoreError as error:
            self._heartbeat_generation = None
            # Retry sooner than a whole period: after three missed ones the daemon declares this host lost.
            period = min(period, 5.0)
            _log.warning("the heartbeat could not be written; retrying in %.1f s: %s", period, error)
        self._heartbeat_due = self._clock.monotonic() + jittered(period, self._rng)

    def _look_at_report(self) -> None:
        """Write the report again if the stored one was replaced or deleted."""
        if self._stored is None or self._stored is not self._wanted:
            return
        try:
            found = self._generation(self._report_key)
        except StoreError:
            return  # with the next heartbeat
        if found != self._report_generation:
            _log.warning("%s is not what this host wrote; writing it again", self._report_key)
            self._report_generation, self._stored = found, None
            self._report_due = self._clock.monotonic()

    def _look_at_others(self) -> None:
        if self._also_look is not None:
            try:
                self._also_look()
            except StoreError as error:
                _log.warning("%s; looking again with the next heartbeat", error)

    def _read_order(self) -> None:
        delay = jittered(self._poll_seconds, self._rng)
        try:
            self._look_at_order()
            self._order_backoff.reset()
        except NotFound:
            pass
        except StoreError as error:
            delay = self._order_backoff.next()
            _log.warning("the order could not be read; retrying in %.1f s: %s", delay, error)
        except InvalidDocument as error:
            _log.warning("%s: %s", self._order_key, error)
        # `stop_polling` may have been called meanwhile.
        if self._order_due is not None:
            self._order_due = self._clock.monotonic() + delay

    def _look_at_order(self) -> None:
        began = self._clock.monotonic()
        meta = self._store.head(self._order_key)
        if meta is None or meta.generation == self._order_generation:
            self._looked_at = began
            if meta is not None:
                self._order_read_at = self._clock.monotonic()
            return
        if meta.generation == self._bad_generation:
            return
        stored = self._store.get(self._order_key, max_bytes=limits.ORDER_MAX_BYTES)
        self._bad_generation = stored.meta.generation
        order = protocol.read(Order, stored.data)
        if order.run != self._run:
            raise InvalidDocument(f"the order is for the run {order.run!r}, not {self._run!r}")
        last = self._order.try_number if self._order is not None else 1
        if order.action is not OrderAction.STOP and order.try_number < last:
            raise InvalidDocument(f"the order is for try {order.try_number}, and try {last} has been ordered")
        self._order_written_at = self._monotonic(stored.meta.updated)
        self._looked_at = began
        self._order = order
        self._bad_generation = 0
        self._order_generation = stored.meta.generation
        self._order_read_at = self._clock.monotonic()
        self._on_change()

    def _monotonic(self, written_at: float) -> float:
        """The monotonic time of an order that this look found, written at that time of the bucket."""
        now = self._clock.monotonic()
        if self._bucket_ahead is None:
            return now
        at = written_at - self._bucket_ahead
        return min(now, at if self._looked_at is None else max(at, self._looked_at))

    def _generation(self, key: str) -> int:
        meta = self._store.head(key)
        return 0 if meta is None else meta.generation
