"""All that a host prints in one attempt, from the command's pipes to the bucket.

Layer: worker. Puts the parts together: `log_pump` reads, `log_lines` cuts, `log_spool` keeps, `log_upload` stores
segments at the turns that `log_pace` gives. A job without a slice has a raw log besides, which goes the same way
through a spool of its own, since its object bears fewer writes. What the encrypting storage proxy beside the command
prints is such a log, too.

Invariants:

* Nothing here waits for the bucket but the uploading threads.
* `done` means that everything is stored that was there when `close` was called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random

from bastion.agent.backoff import Backoff
from bastion.agent.identity import HostIdentity
from bastion.agent.logs.lines import LineCutter, LogRecord, raw_of, text_bytes_at_most, text_of
from bastion.agent.logs.pace import Pace
from bastion.agent.logs.pump import LogPump, is_gloo_noise
from bastion.agent.logs.segments import RawLog, SegmentStore, segment_bytes
from bastion.agent.logs.spool import SPOOL_MAX_BYTES, LogSpool
from bastion.agent.logs.upload import Uploader
from bastion.core.bucket import keys
from bastion.ports import Clock, ObjectStore

_RAW_APPEND_BYTES = 4 * 1024 * 1024
# Of a chunk: what was dropped before it is told in a line.
_GAP_LINE_BYTES = 256
# Up to here the bucket is a folder, or stands on this machine: a write costs nothing.
_LOCAL_POLL_SECONDS = 1.0


class HostLog:
    """The log of one host of one run; `open` comes first, then `start`."""

    def __init__(
        self,
        store: ObjectStore,
        identity: HostIdentity,
        folder: Path,
        *,
        clock: Clock,
        rng: Random,
        drop_noise: bool,
        is_urgent: Callable[[], bool],
        on_change: Callable[[], None],
        capacity_bytes: int = SPOOL_MAX_BYTES,
        source: keys.LogSource = "worker",
    ) -> None:
        """Does nothing yet.

        Args:
            folder: For the spool.
            drop_noise: Whether what the collectives print about themselves on CPU is left out.
            is_urgent: Whether the host goes away, so that the log must be stored at once.
            on_change: Called from another thread when `done` has become true, and when a pump is done.
            source: Whose output it is; the proxy's goes into no raw log.
        """
        arguments = identity.arguments
        self._clock = clock
        self._on_change = on_change
        self._cutter = LineCutter()
        self._segments = SegmentStore(store, job=arguments.job, run=arguments.run, host=identity.host, source=source)
        self._pump: LogPump | None = None
        self._last: LogRecord | None = None
        raw_log = arguments.raw_log if source == "worker" else ""
        local = arguments.poll_seconds <= _LOCAL_POLL_SECONDS
        now, monotonic = clock.now(), clock.monotonic()
        drop_line = is_gloo_noise if drop_noise else None
        self._spools: list[LogSpool] = []
        self._uploaders: list[Uploader] = []
        lanes = 2 if raw_log else 1

        def add_lane(
            name: str,
            size: int,
            *,
            cost_of: Callable[[LogRecord], int],
            render: Callable[[LogRecord], bytes],
            write: Callable[[bytes], None],
            pace: Pace,
        ) -> None:
            spool = LogSpool(
                folder / name,
                chunk_bytes=size - _GAP_LINE_BYTES,
                cost_of=cost_of,
                monotonic=clock.monotonic,
                capacity_bytes=capacity_bytes // lanes,
            )
            self._spools.append(spool)
            uploader = Uploader(
                spool,
                text_of=render,
                write=write,
                pace=pace,
                backoff=Backoff(rng, last_seconds=max(1.0, min(30.0, arguments.poll_seconds * 6))),
                monotonic=clock.monotonic,
                is_urgent=is_urgent,
                on_done=on_change,
            )
            self._uploaders.append(uploader)

        add_lane(
            "segments",
            segment_bytes(identity.num_hosts),
            cost_of=text_bytes_at_most,
            render=lambda record: text_of(record, drop_line),
            write=self._segments.write,
            pace=Pace.of_host(identity.host, identity.num_hosts, local=local, now=now, monotonic=monotonic),
        )
        if raw_log:
            add_lane(
                "raw",
                _RAW_APPEND_BYTES,
                cost_of=lambda record: len(raw_of(record)),
                render=raw_of,
                write=RawLog(store, raw_log).append,
                pace=Pace.of_raw_log(local=local, now=now, monotonic=monotonic),
            )

    def open(self) -> None:
        """Finds what an earlier agent left in the spool.

        Raises:
            OSError: the disk refuses.
        """
        self._cutter.not_before = max(spool.open() for spool in self._spools)

    def go_on(self) -> None:
        """After an earlier agent: no line will be earlier than those that it has stored.

        Raises:
            StoreError: try again.
        """
        self._cutter.not_before = max(self._cutter.not_before, self._segments.open())

    def start(self) -> None:
        """Begins uploading."""
        for uploader in self._uploaders:
            uploader.start()

    def pump(self, pipes: Mapping[str, int]) -> LogPump:
        """Begins reading the pipes "stdout" and "stderr", which it closes; one pump at a time."""
        pump = LogPump(pipes, cutter=self._cutter, put=self._put, clock=self._clock, on_done=self._on_change)
        pump.start()
        self._pump = pump
        return pump

    def note(self, text: str) -> None:
        """Adds a line of the agent's own; from one thread."""
        if self._pump is None or not self._pump.note(text):
            self._put([self._cutter.note(text, at=self._clock.now())])

    @property
    def last_line(self) -> str:
        """What was printed last, as far as it was read; empty if nothing was."""
        data = b"" if self._last is None else self._last.data
        return data.rstrip(b"\n").rpartition(b"\n")[2].decode("utf-8", "replace")

    def gap(self, reason: str) -> None:
        """Adds a line that says that nobody knows how much is missing here."""
        self._put([self._cutter.gap(None, reason, at=self._clock.now())])

    def close(self) -> None:
        """No more will come."""
        for spool in self._spools:
            spool.close()

    @property
    def done(self) -> bool:
        """Whether everything is stored."""
        return all(uploader.done for uploader in self._uploaders)

    @property
    def is_uploading(self) -> bool:
        """Whether a thread is still at it: `done` and `abandon` take effect after the operation it is in."""
        return any(uploader.is_alive for uploader in self._uploaders)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return all(spool.waiting() is None for spool in self._spools)

    @property
    def spooled_bytes(self) -> int:
        """What lies on the disk."""
        return sum(spool.held_bytes for spool in self._spools)

    def abandon(self) -> None:
        """Ends uploading, whatever is left in the spool."""
        for uploader in self._uploaders:
            uploader.abandon()

    def _put(self, records: Iterable[LogRecord]) -> None:
        kept = list(records)
        if kept:
            self._last = kept[-1]
        for spool in self._spools:
            spool.put(kept)
