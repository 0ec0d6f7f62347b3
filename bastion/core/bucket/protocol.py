"""The protocol between the daemon and the hosts of an attempt: orders, claims, reports.

The daemon writes the order (and closes claims), worker 0 of slice 0 creates the claim, each host writes its report.
Unknown fields are ignored, so that neighboring versions understand each other.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bastion.core import documents
from bastion.core.errors import InvalidDocument
from bastion.core.run_keys import RunKey, is_signed

# The user of commands that the startup script creates on the hosts of slices.
HOST_JOB_USER = "bastion-job"


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", defer_build=True)

    format: int = 1

    def to_bytes(self) -> bytes:
        return documents.dumps(self.model_dump(mode="json", exclude_none=True))


D = TypeVar("D", bound=_Document)


def read(model: type[D], data: bytes) -> D:
    """Parse an order, claim, report or agent arguments; raises InvalidDocument if it is not such a document."""
    try:
        documents.loads(data)  # bounded, no duplicate keys; the model below then parses in JSON mode
        return model.model_validate_json(data)
    except (documents.DocumentError, ValidationError) as error:
        raise InvalidDocument(f"not a {model.__name__.lower()}: {error}") from error


class _Signed(_Document):
    """A document that the hosts of a run prove to be theirs."""

    signature: str = ""  # of all other fields, as canonical JSON


S = TypeVar("S", bound=_Signed)


def sign(document: S, key: RunKey) -> S:
    """Return the document signed with the key of its run."""
    signature = key.sign(_purpose(type(document)), _signed_bytes(documents.loads(document.to_bytes())))
    return document.model_copy(update={"signature": signature})


def read_signed(model: type[S], data: bytes, public: str) -> S:
    """Parse a claim or report; raises InvalidDocument unless the run with that public key signed it.

    Fields that this version does not know are a part of what was signed.
    """
    document = read(model, data)
    if not is_signed(public, _purpose(model), _signed_bytes(documents.loads(data)), document.signature):
        raise InvalidDocument(f"the {_purpose(model)} is not signed with the key of its run")
    return document


def _purpose(model: type[_Signed]) -> str:
    return model.__name__.lower()


def _signed_bytes(fields: dict[str, Any]) -> bytes:
    return documents.dumps({name: value for name, value in fields.items() if name != "signature"})


class AgentArguments(_Document):
    """The arguments of an agent that cannot read the bucket yet, from the node's metadata or a file."""

    root: str  # the bastion's ROOT as a URL
    bastion: str
    job: str  # the job's name, for the log keys
    run: str
    run_key: str  # the secret of the run (`RunKey.text`), which proves what its hosts write
    # Replica of this node, from 0; None: the agent asks its platform.
    slice_index: int | None = Field(default=None, ge=0)
    num_slices: int = Field(default=1, ge=1)  # replicas of the job
    # Hosts of one node; host i of the job is `slice_index * hosts_per_slice + worker`.
    hosts_per_slice: int = Field(default=1, ge=1)
    accelerator_type: str = ""  # `v4-32`; empty on the bastion's own host
    zone: str | None = None  # of the place where its slice is; None on the bastion's own host
    devices_per_host: int = Field(default=0, ge=0)  # JAX devices of one host; 0 on the bastion's own host
    gpus_per_host: int | None = Field(default=None, ge=1)  # None: no GPUs
    raw_log: str = ""  # key of an object that also gets the raw output (jobs without a slice), or empty
    # Intervals for reading orders and claims, and for heartbeats.
    poll_seconds: float = 5.0
    beat_seconds: float = 30.0
    order_lost_seconds: float = 0.0  # stop the command after this long without reading the order; 0: never
    interpreter: str = ""  # Python for commands of hosts that share our file system; otherwise empty
    agent: str = ""  # digest of the agent to fetch (`keys.agent_file`); empty: none
    # Folder on the host that outlives jobs, for their inputs, and how much it may hold; None: none.
    input_cache: str | None = None
    input_cache_bytes: int | None = Field(default=None, ge=0)
    # A node whose command has ended powers itself off after this long without a sign of the daemon; 0: never.
    power_off_seconds: float = Field(default=0.0, ge=0)
    # Host 0 creates the claim only when every host has a report of this attempt: nothing else starts them together.
    gather_hosts: bool = False
    # The agent exits once its last report is stored and no try can follow, instead of waiting for its host's deletion.
    leave_when_done: bool = False
    # From the host's SIGTERM to the command's SIGKILL; storing the rest takes up to 10 s more. 0: a VM's few seconds.
    shutdown_seconds: float = Field(default=0.0, ge=0)
    job_user: str = ""  # whom commands run as, NAME or UID:GID (ADR 62); empty: the agent's user


class OrderAction(str, Enum):
    RUN = "run"
    # End the command if it runs and report WAITING for the order's try, so that no host begins a try while another is
    # still in the last one.
    RESTART = "restart"
    STOP = "stop"


class InputOrder(BaseModel):
    """What a host fetches before the command starts, and the folder below the working directory that it goes into."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", defer_build=True)

    url: str
    dir: str


class TimeLeft(BaseModel):
    """How long a host may go on with the attempt before it stops the command without being told (`--max_run`).

    Attributes:
        seconds: From when the host passed the gate.
        from_order: They count from when the order was written instead.
        grace_seconds: From SIGTERM to SIGKILL.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, defer_build=True)

    seconds: float = Field(ge=0)
    from_order: bool = False
    grace_seconds: float = Field(default=30.0, ge=0)


class Order(_Document):
    """`runs/<run>/order`: what the hosts of this run do now. A stop order keeps the run's fields."""

    model_config = ConfigDict(frozen=True, strict=False, extra="ignore", allow_inf_nan=False, defer_build=True)

    run: str
    action: OrderAction
    command: str = ""  # one bash command line, run as `bash -c`
    env: dict[str, str] = Field(default_factory=dict)  # the spec's variables; the agent's own take precedence
    job: str = ""
    user_id: str = ""
    project_id: str = ""
    reason: str = ""  # why to stop, for the logs and the report
    grace_seconds: float = 30.0  # from SIGTERM to SIGKILL
    try_number: int = Field(default=1, ge=1)  # of this attempt; a lower one than seen is ignored, except to stop
    max_tries: int = Field(default=1, ge=1)  # number of the last try, unless one gets stuck
    code: str = ""  # URL of the user's code, a tar file; empty: none
    code_sha256: str = ""  # its digest; empty: not checked
    setup: str | None = None  # command line to run once before the command; None: the default one, empty: none
    output_dir: str = ""  # folder below the working directory whose content is stored; empty: none
    output_sync: str = "each"  # the stored content that a host begins with: "each" its own, "worker0" that of host 0
    proxy: str = ""  # what the encrypting storage proxy encrypts; empty: no proxy
    stuck_after_seconds: int = 0  # after so long without a sign of the command, a host says so; 0: never
    dump_stacks: bool = False  # the command is stuck: show the stacks of its processes before it is ended
    secrets: dict[str, str] = Field(default_factory=dict)  # variable -> where the host finds its value
    root: bool = False  # setup and command run as the agent, although there is a job user

    def is_last(self, try_number: int) -> bool:
        """Whether no try can follow, however this one ends. Its peers may get stuck after a host has ended well."""
        return self.max_tries <= try_number and not self.stuck_after_seconds

    inputs: list[InputOrder] = Field(default_factory=list)
    output_to: str = ""  # bucket or folder of the stored output folder; empty: the bastion's bucket
    time_left: TimeLeft | None = None  # None: no limit
    # Public keys of the job's earlier attempts, by run: whose stored outputs and results the hosts believe.
    proofs: dict[str, str] = Field(default_factory=dict)


class Claim(_Signed):
    """`jobs/claims/<run>.<tag>`: create-only. Worker 0 may run, or the daemon closed the gate (`closed`).

    Only who has the run's key knows the tag before the claim exists, and can sign it.

    `address`: `host:port` of worker 0, the hosts' coordinator; empty without a slice. `hosts`: addresses of all hosts
    by their numbers, if the job has several hosts with GPUs.
    """

    run: str
    boot_id: str = ""
    closed: str = ""
    address: str = ""
    hosts: list[str] | None = None

    @property
    def opened(self) -> bool:
        """Whether hosts of this run may pass."""
        return bool(self.signature) and not self.closed


class HostPhase(str, Enum):
    """A host's progress; EXITED, STOPPED, REFUSED and FAILED are final."""

    WAITING = "waiting"  # waits for the claim, or for the order of its next try
    PREPARING = "preparing"  # fetches code and inputs, sets up, restores outputs
    RUNNING = "running"  # the command runs
    ENDED = "ended"  # the command ended by itself; its output is being uploaded
    EXITED = "exited"  # the command ended by itself; its output is uploaded
    STOPPED = "stopped"  # ended by a stop order, before or after the command began; its output is uploaded
    REFUSED = "refused"  # the gate was closed, or its claim is not by this run's hosts: the command never ran here
    FAILED = "failed"  # `error` says what: HostRestarted, SetupFailed, ...

    @property
    def final(self) -> bool:
        return self in (HostPhase.EXITED, HostPhase.STOPPED, HostPhase.REFUSED, HostPhase.FAILED)


class Report(_Signed):
    """`runs/<run>/reports/<i>`: the state of host i, written on every change.

    A new checkpoint alone is reported less often (`limits.CHECKPOINT_REPORT_SECONDS`).
    """

    model_config = ConfigDict(frozen=True, strict=False, extra="ignore", defer_build=True)

    run: str
    host: int = Field(ge=0)
    sequence: int = Field(default=0, ge=0)  # rises with each write; the daemon ignores a lower one than it saw
    boot_id: str = ""
    address: str | None = None  # of a host with GPUs
    phase: HostPhase
    exit_code: int | None = None  # the command's, 128 + n for signal n; None until it ended
    error: str = ""  # one of `bastion.core.bucket.host_errors`, or empty
    message: str = ""
    # RFC 3339 by the host's clock; never compared with another clock.
    started_at: str = ""
    ended_at: str = ""
    # Last touch of the checkpoint file, by the same clock, not before `started_at`; empty if none.
    checkpointed_at: str = ""
    # From the step file, of this try: the first step and the highest; None if none.
    first_step: int | None = Field(default=None, ge=0)
    last_step: int | None = Field(default=None, ge=0)
    # While it runs: for `stuck_after_seconds` there was no sign of the command on this host.
    stuck: bool | None = None
    # While it fetches inputs: the bytes that it has, and those of all of them.
    fetched_bytes: int | None = Field(default=None, ge=0)
    input_bytes: int | None = Field(default=None, ge=0)
    try_number: int = Field(default=1, ge=1)
