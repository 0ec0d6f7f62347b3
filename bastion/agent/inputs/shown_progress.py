"""What a host says while it fetches inputs: reports for `why` and `list`, lines for the job's log."""

from __future__ import annotations

from bastion.agent.backoff import jittered
from bastion.agent.host_parts import HostParts
from bastion.agent.inputs.inputs_download import InputsDownload
from bastion.agent.logs.host_log import HostLog
from bastion.agent.wait_notes import WaitNotes
from bastion.core.bucket.protocol import HostPhase
from bastion.core.disk_limit import shown_part

# Each report costs a write and a read: one after so many looks at the order (15 s on a bucket in the cloud), and about
# two in a second of all hosts of a job together.
_REPORT_POLLS = 3
_REPORT_SECONDS_PER_HOST = 0.5
_LOG_SECONDS = 60.0
# Before the first line: small inputs need none.
_FIRST_LOG_SECONDS = 5.0


class InputsProgress:
    """The progress of one download; `poll` is called often, and by one thread."""

    def __init__(self, parts: HostParts, log: HostLog, download: InputsDownload) -> None:
        self._parts = parts
        self._log = log
        self._download = download
        self._reported: tuple[int, int] | None = None
        self._report_due = 0.0
        self._log_due = parts.clock.monotonic() + _FIRST_LOG_SECONDS
        self._wait_notes = WaitNotes(parts, log)
        parts.reporter.publish(HostPhase.PREPARING)

    def poll(self) -> None:
        now = self._parts.clock.monotonic()
        self.log_notes()
        found = (self._download.fetched, self._download.total)
        if found[1] and found != self._reported and now >= self._report_due:
            self._parts.reporter.publish(HostPhase.PREPARING, inputs=found)
            identity = self._parts.identity
            polls = _REPORT_POLLS * identity.arguments.poll_seconds
            period = max(polls, _REPORT_SECONDS_PER_HOST * identity.num_hosts)
            self._reported, self._report_due = found, now + jittered(period, self._parts.rng)
        if now >= self._log_due:
            self._log.note(f"fetching inputs: {shown_part(*found)}" if found[1] else "listing inputs")
            self._log_due = now + _LOG_SECONDS
        self._wait_notes.poll(self._download.waiting_for, inputs=found if found[1] else None)

    def log_notes(self) -> None:
        for line in self._download.take_notes():
            self._log.note(line)
