"""What the daemon and the hosts of an attempt tell each other through the bucket: orders, claims, reports.

Writers: the daemon writes the order (and closes claims), worker 0 of slice 0 creates the claim, each host writes its
own report. All are small JSON documents; unknown fields are ignored, so that an agent and a daemon of neighbouring
versions understand each other.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bastion.core import documents
from bastion.core.errors import InvalidDocument


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    format: int = 1

    def to_bytes(self) -> bytes:
        return documents.dumps(self.model_dump(mode="json", exclude_none=True))


D = TypeVar("D", bound=_Document)


def read(kind: type[D], data: bytes) -> D:
    """Parses an order, claim, report or agent arguments.

    Raises:
        InvalidDocument: the bytes are not such a document.
    """
    try:
        documents.loads(data)  # bounded, no duplicate keys; the model below then parses in JSON mode
        return kind.model_validate_json(data)
    except (documents.DocumentError, ValidationError) as error:
        raise InvalidDocument(f"not a {kind.__name__.lower()}: {error}") from error


class AgentArguments(_Document):
    """What an agent must know before it can read the bucket; travels in the node's metadata, or in a file.

    Attributes:
        root: The bastion's ROOT as a URL.
        bastion: The bastion's name.
        job: The job's name, for the log keys.
        run: `<uid>-<attempt>`.
        token: The attempt's run token; stands in the claim.
        slice_index: Which replica this node is, from 0; None: all nodes of a gang get the same arguments, and each
            asks its platform.
        num_slices: How many replicas the job has.
        hosts_per_slice: Hosts of one node; host i of the job is `slice_index * hosts_per_slice + worker`.
        accelerator_type: For example `v4-32`; empty on the bastion's own host.
        devices_per_host: JAX devices of one host; 0 on the bastion's own host.
        raw_log: Key of an object that gets the raw output as well (jobs without a slice), or empty.
        poll_seconds: How often orders and claims are read.
        beat_seconds: How often this host beats.
        order_lost_seconds: Stop the command when the order could not be read for so long; 0 means never.
        interpreter: Python for the commands of hosts that share our file system; else empty.
        agent: Digest of the agent to fetch from the bucket (`keys.agent_file`); empty: none is fetched.
        power_off_seconds: A node whose command has ended, and that has seen no life of the daemon for so long, powers
            itself off; 0 means never.
    """

    root: str
    bastion: str
    job: str
    run: str
    token: str
    slice_index: int | None = Field(default=None, ge=0)
    num_slices: int = Field(default=1, ge=1)
    hosts_per_slice: int = Field(default=1, ge=1)
    accelerator_type: str = ""
    devices_per_host: int = Field(default=0, ge=0)
    raw_log: str = ""
    poll_seconds: float = 5.0
    beat_seconds: float = 30.0
    order_lost_seconds: float = 0.0
    interpreter: str = ""
    agent: str = ""
    power_off_seconds: float = Field(default=0.0, ge=0)


class OrderAction(str, Enum):
    RUN = "run"
    # End the command if it still runs, report WAITING for the order's try, and run nothing: so no host begins a try
    # while another is still at the one before.
    RESTART = "restart"
    STOP = "stop"


class Order(_Document):
    """`runs/<run>/order`: what the hosts of this attempt do now.

    A stop order keeps the run's fields, so that a host that reads nothing else still knows what it was about.

    Attributes:
        command: One bash command line, run as `bash -c`.
        env: The spec's variables; names that the agent sets itself win over them.
        reason: Why to stop, for the logs and the report.
        grace_seconds: Between SIGTERM and SIGKILL.
        try_number: Which try of this attempt; an order of a lower one than was seen does not count, except to stop.
        max_tries: How many there are at most.
        code: URL of the user's code, a tar file; empty: there is none.
        code_sha256: Its digest; empty: whatever lies there counts.
        setup: Command line to run once before the command; None: the default one, empty: none.
        output_dir: Folder below the command's own whose content is stored; empty: none.
        output_sync: Whose stored content a host begins with: "each" its own, or "worker0" that of host 0.
        proxy: What the encrypting storage proxy beside the command encrypts; empty: there is no proxy.
    """

    model_config = ConfigDict(frozen=True, strict=False, extra="ignore")

    run: str
    action: OrderAction
    command: str = ""
    env: dict[str, str] = Field(default_factory=dict)
    job: str = ""
    user_id: str = ""
    project_id: str = ""
    reason: str = ""
    grace_seconds: float = 30.0
    try_number: int = Field(default=1, ge=1)
    max_tries: int = Field(default=1, ge=1)
    code: str = ""
    code_sha256: str = ""
    setup: str | None = None
    output_dir: str = ""
    output_sync: str = "each"
    proxy: str = ""


class Claim(_Document):
    """`jobs/claims/<run>`: create-only. Either worker 0 may run (`token`), or the daemon closed the gate (`closed`).

    `address` is `host:port` of worker 0, where the hosts of the job find their coordinator; empty without a slice.
    """

    run: str
    token: str = ""
    boot_id: str = ""
    closed: str = ""
    address: str = ""


class HostPhase(str, Enum):
    """Where a host is; only EXITED, STOPPED, REFUSED and FAILED are final."""

    WAITING = "waiting"  # the agent is up and waits for the claim, or for the order of its next try
    PREPARING = "preparing"  # fetches the code, sets up, restores outputs
    RUNNING = "running"  # the command runs
    ENDED = "ended"  # the command ended by itself, its exit code is known; output is still being uploaded
    EXITED = "exited"  # the command ended by itself; its output is uploaded
    STOPPED = "stopped"  # ended by a stop order, before or after the command began; its output is uploaded
    REFUSED = "refused"  # the gate was closed or belongs to another token: the command never ran here
    FAILED = "failed"  # `error` says what: HostRestarted, SetupFailed, ...

    @property
    def final(self) -> bool:
        return self in (HostPhase.EXITED, HostPhase.STOPPED, HostPhase.REFUSED, HostPhase.FAILED)


class Report(_Document):
    """`runs/<run>/reports/<i>`: written by host i on every change; of a newer checkpoint alone, only now and then
    (`limits.CHECKPOINT_REPORT_SECONDS`).

    Attributes:
        token: The run token the host was given; a report with another one does not count.
        exit_code: The command's, 128 + n for a signal n; None until it ended.
        error: Name of what went wrong on the host, one of `bastion.core.bucket.host_errors`; empty otherwise.
        message: The same for people.
        started_at, ended_at: RFC 3339 by the host's clock; shown, never compared with another clock.
        checkpointed_at: When the command last touched its checkpoint file, by the same clock and never before
            `started_at`; empty if it never did.
        try_number: Which try of the attempt this is about.
    """

    model_config = ConfigDict(frozen=True, strict=False, extra="ignore")

    run: str
    host: int = Field(ge=0)
    token: str
    boot_id: str = ""
    phase: HostPhase
    exit_code: int | None = None
    error: str = ""
    message: str = ""
    started_at: str = ""
    ended_at: str = ""
    checkpointed_at: str = ""
    try_number: int = Field(default=1, ge=1)
