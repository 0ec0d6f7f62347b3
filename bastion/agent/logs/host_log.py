"""The output of one host in one attempt, from the command's pipes to the bucket.

`pump` reads, `lines` cuts, `spool` keeps, `upload` stores segments at the slots of `pace`. A job without a slice also
has a raw log with a spool of its own, because its object takes fewer writes.

Invariants:
* Only the uploading threads wait for the bucket.
* `done` means that everything from before `close` is stored.
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
# Part of a chunk: a line says what was dropped before it.
_GAP_LINE_BYTES = 256
# Below this latency the bucket is a folder or on this machine: writes cost nothing.
_LOCAL_POLL_SECONDS = 1.0


class HostLog:
    """The log of one host of one run, of the command or the storage proxy. Call `open`, then `start`."""

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
        """Make the log; `open` takes its folder, and `start` starts the uploads.

        Args:
            folder: For the spool.
            drop_noise: Whether to drop what gloo prints about itself on CPU.
            is_urgent: Whether the host is shutting down, so that the log must be stored at once.
            on_change: Called from another thread when `done` becomes true or a pump is done.
            source: Whose output it is; the proxy has no raw log.
        """
        arguments = identity.arguments
        self._clock = clock
        self._on_change = on_change
        self._cutter = LineCutter()
        self._segments = SegmentStore(
            store, job=arguments.job, run=arguments.run, host=identity.host, run_key=identity.run_key, source=source
        )
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
        self._cutter.not_before = max(spool.open() for spool in self._spools)

    def go_on(self) -> None:
        """Continue an earlier agent's log: no line gets an earlier time than the stored ones. Raises StoreError."""
        self._cutter.not_before = max(self._cutter.not_before, self._segments.open())

    def start(self) -> None:
        for uploader in self._uploaders:
            uploader.start()

    def pump(self, pipes: Mapping[str, int], *, tap: Callable[[LogRecord], None] | None = None) -> LogPump:
        """Start reading the pipes "stdout" and "stderr"; the pump closes them. One pump at a time.

        `tap`: called with each record, from the pump's thread.
        """

        def put(records: Iterable[LogRecord]) -> None:
            kept = list(records)
            self._put(kept)
            if tap is not None:
                for record in kept:
                    tap(record)

        pump = LogPump(pipes, cutter=self._cutter, put=put, clock=self._clock, on_done=self._on_change)
        pump.start()
        self._pump = pump
        return pump

    def note(self, text: str) -> None:
        """Add a line by the agent; from one thread only."""
        if self._pump is None or not self._pump.note(text):
            self._put([self._cutter.note(text, at=self._clock.now())])

    @property
    def last_line(self) -> str:
        """The last line that was read, or ""."""
        data = b"" if self._last is None else self._last.data
        return data.rstrip(b"\n").rpartition(b"\n")[2].decode("utf-8", "replace")

    def gap(self, reason: str) -> None:
        """Add a line that says that an unknown amount of output is missing."""
        self._put([self._cutter.gap(None, reason, at=self._clock.now())])

    def close(self) -> None:
        for spool in self._spools:
            spool.close()

    @property
    def done(self) -> bool:
        return all(uploader.done for uploader in self._uploaders)

    @property
    def is_uploading(self) -> bool:
        """Whether a thread is still uploading: `done` and `abandon` take effect after its current operation."""
        return any(uploader.is_alive for uploader in self._uploaders)

    @property
    def is_empty(self) -> bool:
        return all(spool.waiting() is None for spool in self._spools)

    @property
    def spooled_bytes(self) -> int:
        return sum(spool.held_bytes for spool in self._spools)

    def abandon(self) -> None:
        """Stop uploading; the rest stays in the spool."""
        for uploader in self._uploaders:
            uploader.abandon()

    def _put(self, records: Iterable[LogRecord]) -> None:
        kept = list(records)
        if kept:
            self._last = kept[-1]
        for spool in self._spools:
            spool.put(kept)
