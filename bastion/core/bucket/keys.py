"""Keys of the bucket, relative to the bastion's ROOT (contract: `docs/reference/bucket-format.md`).

Only this module spells keys. It checks names from outside first.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Literal, TypeAlias

from bastion.core import limits
from bastion.core.errors import InvalidSpec

# The output of the job on a host, or of its encrypting storage proxy.
LogSource: TypeAlias = Literal["worker", "proxy"]

JOBS_ACTIVE = "jobs/active/"
JOBS_USER_STATES = "jobs/user_states/"
JOBS_STATES = "jobs/states/"
JOBS_COMPLETE = "jobs/complete/"
JOBS_CLAIMS = "jobs/claims/"
JOBS_INVALID = "jobs/invalid/"
# Whose folder it is proves who wrote an object (mode `inbox`): `inbox/<user>/active/<job>`, `.../user_states/<job>`.
INBOX = "inbox/"
# What users ask of jobs besides their end, each an object of its own; in an inbox `inbox/<user>/requests/<job>~<id>`.
REQUESTS = "requests/"
RUNS = "runs/"
BEATS = "beats/"
AUDIT = "audit/"
LEASE = "lease"
STATUS = "status/current.json"
DAEMON_SETTINGS = "config/daemon.toml"
IDENTITY = "config/identity.json"
RUNTIME_OPTIONS = "runtime_options"
PROJECT_QUOTAS = "project-quotas/project-quotas.config"
# In the daemon's private place, beside the quota file: what the keys of all runs follow from.
SECRETS = "secrets/"
RUN_SECRET = "secrets/runs"
FORMER_QUOTAS = "project-quotas/former/"
# Objects that `bastion doctor` makes and deletes.
DOCTOR = "doctor/"
# The daemon's copies of the last good files.
QUOTAS_IN_FORCE = "project-quotas/in-force.config"
SETTINGS_IN_FORCE = "config/in-force.toml"
OPTIONS_IN_FORCE = "config/in-force-options.json"
IDENTITY_IN_FORCE = "config/in-force-identity.json"

# Large data that can wait for free space.
_BULK = ("logs/", "outputs/", "bundles/", "agents/")

# Names that we create and read. AXLearn's clients write any printable ASCII character but "/". We refuse what is
# special to a shell, a URL or gsutil, and "~", which separates a name from a uid in our keys.
_NEW_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")
_READ_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:,+=@-]*")
# `logs/<job>.cleanup` is the log of that job's cleanup command.
_SEGMENT_DIGITS = 10
_TAKEN_ENDING = ".cleanup"
# Endings that look like worker folders and rolled logs in the logs folder.
_MISLEADING_ENDING = re.compile(r"(?:\.d|[-.](?:19|20)\d{6}(?:\.\d+)?)\Z")
_INBOX_USER = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_REQUEST_ID = re.compile(r"[a-z0-9]{8,32}")
_RUN = re.compile(r"(?P<uid>[a-z2-7]{10})-(?P<attempt>[1-9][0-9]{0,5}|cleanup(?P<try>[2-9])?)")


def is_vital(key: str) -> bool:
    """Whether jobs cannot start, end or be cancelled without this key. Such a key may use a disk's reserve."""
    return not key.startswith(_BULK)


def check_job_name(name: str, *, bastion: str, new: bool = False) -> None:
    """Refuse a name that is not safe as a key, a log and a folder; raises InvalidSpec.

    Args:
        bastion: The bastion's own name; its logs are beside the jobs'.
        new: Whether we create the job; more names are read than created.
    """
    if not isinstance(name, str) or not name:
        raise InvalidSpec("the job has no name; give it one with --name")
    most = limits.NEW_NAME_MAX_CHARS if new else limits.NAME_MAX_CHARS
    if len(name) > most:
        raise InvalidSpec(f"the job name {name[:80]!r} is {len(name)} characters long; the maximum is {most}")
    if new and not _NEW_NAME.fullmatch(name):
        raise InvalidSpec(
            f"{name!r} is not a valid job name; use lowercase letters, digits, '.', '_' and '-', "
            "with a letter or digit at both ends"
        )
    if not _READ_NAME.fullmatch(name):
        raise InvalidSpec(
            f"{name!r} is not a valid job name; use letters, digits and any of '_.:,+=@-', "
            "with a letter, a digit or '_' at the beginning"
        )
    if name.startswith(bastion):
        raise InvalidSpec(f"the job name {name!r} begins with the bastion's own name; choose another")
    if name.endswith(_TAKEN_ENDING):
        raise InvalidSpec(
            f"the job name {name!r} ends in {_TAKEN_ENDING}, like the log of another job's cleanup command; "
            "choose another"
        )
    if new and _MISLEADING_ENDING.search(name):
        raise InvalidSpec(f"the job name {name!r} ends like a log file (.d or a date); choose another")


def is_plain_name(name: str) -> bool:
    return len(name) <= limits.NAME_MAX_CHARS and bool(_READ_NAME.fullmatch(name))


def key_name(name: str) -> str:
    """Return the name for keys about a job: its own if safe, otherwise `sha256-<hex>`."""
    if is_plain_name(name) and not name.startswith("sha256-"):
        return name
    return "sha256-" + hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()


def is_uid(text: str) -> bool:
    return Run.parse(f"{text}-1") is not None


def job_uid(root: str, name: str, generation: int, *, owner: str = "") -> str:
    """Return the uid of the job whose first object has that generation: 10 characters of base32.

    `owner`: whose inbox has the object. No name contains a slash, so nobody can get the uid of another's job.
    """
    place = f"{owner}/{name}" if owner else name
    digest = hashlib.sha256(f"{root}\n{place}\n{generation}".encode()).digest()
    return base64.b32encode(digest)[:10].decode().lower()


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt of one job: `<uid>-<attempt>`. 0 is the cleanup command: each of its tries is a run of its own."""

    uid: str
    attempt: int
    cleanup_try: int = 1

    def __str__(self) -> str:
        again = self.cleanup_try if self.cleanup_try > 1 else ""
        return f"{self.uid}-{self.attempt or f'cleanup{again}'}"

    @staticmethod
    def parse(text: str) -> Run | None:
        """Return the run in a part of a key; None if it is not one of ours."""
        match = _RUN.fullmatch(text)
        if match is None:
            return None
        attempt = match["attempt"]
        return Run(match["uid"], int(attempt)) if attempt.isdecimal() else Run(match["uid"], 0, int(match["try"] or 1))


def active(job: str, owner: str = "") -> str:
    """Return the key of a spec; `owner`: in whose inbox, where only he can write."""
    return f"{INBOX}{owner}/active/{job}" if owner else JOBS_ACTIVE + job


def user_state(job: str, owner: str = "") -> str:
    return f"{INBOX}{owner}/user_states/{job}" if owner else JOBS_USER_STATES + job


def is_inbox_user(text: str) -> bool:
    return bool(_INBOX_USER.fullmatch(text))


@dataclass(frozen=True, slots=True)
class InboxKey:
    """A key in an inbox: a spec, or a request about a job."""

    user: str
    job: str
    request: bool

    @staticmethod
    def parse(key: str) -> InboxKey | None:
        """Return what the key names; None if it is none of an inbox."""
        folder, _, rest = key.partition("/")
        user, _, rest = rest.partition("/")
        kind, _, job = rest.partition("/")
        known = folder == INBOX[:-1] and kind in ("active", "user_states") and bool(job)
        return InboxKey(user, job, kind == "user_states") if known and is_inbox_user(user) else None


@dataclass(frozen=True, slots=True)
class RequestKey:
    """A key of a request about a job; `user`: in whose inbox it is, empty in mode `open`."""

    job: str
    request_id: str
    user: str = ""

    @staticmethod
    def parse(key: str) -> RequestKey | None:
        """Return what the key names; None if it is none of a request."""
        user, separator = "", "/"
        rest = key.removeprefix(REQUESTS)
        if rest == key:
            folder, _, rest = key.partition("/")
            user, _, rest = rest.partition("/")
            kind, _, rest = rest.partition("/")
            separator = "~"  # no folder in it: its maker would own that folder, and could move what is inside
            if folder != INBOX[:-1] or kind != "requests" or not is_inbox_user(user):
                return None
        job, found, request_id = rest.partition(separator)
        known = found and is_plain_name(job) and _REQUEST_ID.fullmatch(request_id)
        return RequestKey(job, request_id, user) if known else None


def request(job: str, request_id: str, owner: str = "") -> str:
    """Return the key of a request about a job; `owner`: in whose inbox. Ids have 8 to 32 of a-z and 0-9."""
    return f"{INBOX}{owner}/requests/{job}~{request_id}" if owner else f"{REQUESTS}{job}/{request_id}"


def inbox_user(key: str) -> str:
    """Return whose inbox has that key; empty if none has."""
    if not key.startswith(INBOX):
        return ""
    found = InboxKey.parse(key) or RequestKey.parse(key)
    return found.user if found is not None else ""


def state(job: str) -> str:
    return JOBS_STATES + job


def complete(job: str) -> str:
    return JOBS_COMPLETE + job


def former_result(job: str, uid: str) -> str:
    """Return the key of an earlier job's result; no job name contains the separator."""
    return f"{JOBS_COMPLETE}{job}~{uid}"


def former_result_before(job: str, uid: str) -> str:
    """Return that key in versions up to 0.1.0; another job may have that name."""
    return f"{JOBS_COMPLETE}{job}.{uid}"


def job_of_result(name: str) -> str:
    """Return the job of the result with that name under `jobs/complete/`, the newest or a former one."""
    return name.partition("~")[0]


def invalid(job: str, owner: str = "") -> str:
    return JOBS_INVALID + invalid_name(job, owner)


def invalid_name(job: str, owner: str = "") -> str:
    """Return the name of an explanation; `owner`: to whom, about his object. No job name contains the separator."""
    return f"{key_name(job)}~{owner}" if owner else key_name(job)


def claim(run: str, tag: str) -> str:
    """Return the key of a run's claim; `tag`: `RunKey.claim_tag`. Other names that begin with the run are nobody's."""
    return f"{JOBS_CLAIMS}{run}.{tag}"


def run_of_claim(name: str) -> str:
    """Return the run that a name below `jobs/claims/` begins with, whoever wrote it."""
    return name.partition(".")[0]


def order(run: str) -> str:
    return f"{RUNS}{run}/order"


def reports(run: str) -> str:
    return f"{RUNS}{run}/reports/"


def report(run: str, host: int) -> str:
    return f"{reports(run)}{host}"


def beat(run: str, host: int) -> str:
    return f"{BEATS}{run}.{host}"


def log(job: str) -> str:
    """Return the bastion's log of a job; also the daemon's own, by the bastion's name."""
    return f"logs/{job}"


def cleanup_log(job: str) -> str:
    return f"logs/{job}.cleanup"


def worker_logs(job: str) -> str:
    return f"logs/{job}.d/"


def log_segments(job: str, run: str, host: int, *, source: LogSource = "worker") -> str:
    return f"logs/{job}.d/{run}/{source}-{host}/"


def log_segment(job: str, run: str, host: int, seq: int, *, source: LogSource = "worker") -> str:
    """Return a segment's key. The sequence number has ten digits, so that key order is line order."""
    return segment_in(log_segments(job, run, host, source=source), seq)


def segment_in(folder: str, seq: int) -> str:
    """Return the key of a segment in that folder, which is a `log_segments`."""
    return f"{folder}{seq:0{_SEGMENT_DIGITS}d}"


def segment_number(name: str) -> int | None:
    """Return the number in the last part of a segment's key; None if it is not one."""
    return int(name) if len(name) == _SEGMENT_DIGITS and name.isascii() and name.isdigit() else None


def job_history(job: str) -> str:
    return f"history/jobs/{job}"


def project_history(project: str, day: str) -> str:
    return f"history/projects/{project}/{day}"


def audit(day: str, part: int = 0) -> str:
    """Return the key of a part of a day's audit trail; a new one begins when the last is full."""
    return f"{AUDIT}{day}.{part}" if part else f"{AUDIT}{day}"


def former_quota(written_at: float, generation: int) -> str:
    """Return the key of a replaced quota file. `written_at` is in seconds since the epoch."""
    moment = datetime.fromtimestamp(written_at, timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return f"{FORMER_QUOTAS}{moment}-{generation}.config"


def gang(run: str) -> str:
    return f"b-{run}"


def agent_file(sha256: str) -> str:
    """Return the key of the agent with its packages, as one tar file with that digest."""
    return f"agents/{sha256}/agent.tar"


def agent_manifest(sha256: str) -> str:
    return f"agents/{sha256}/manifest.json"


def bundle(sha256: str) -> str:
    return f"bundles/{sha256}.tar.gz"


def outputs(job: str, uid: str, host: int) -> str:
    """Return the prefix of a host's stored outputs; `bastion.core.bucket.outputs` defines the names below."""
    return f"{outputs_of(job, uid)}worker-{host}/"


def outputs_of(job: str, uid: str) -> str:
    """Return the prefix of all outputs of a job."""
    return f"outputs/{job}/{uid}/"


def pinned_input(job: str, run: Run, number: int) -> str:
    """Return the prefix of the listing of an attempt's input; `bastion.core.bucket.pinned` defines the names below.

    Beside the outputs: hosts may write there, and it stays as long.
    """
    return f"{outputs_of(job, run.uid)}inputs/{run.attempt}/{number}/"


def results_of(job: str, uid: str) -> str:
    """Return the prefix of what the job's hosts measured; the host's number follows.

    Beside the outputs: hosts may write there, and it stays as long.
    """
    return f"{outputs_of(job, uid)}results/"


def results(job: str, uid: str, host: int) -> str:
    return f"{results_of(job, uid)}{host}"


def host_of_outputs(folder: str) -> int | None:
    """Return the host whose outputs are in that folder below `outputs_of`; None if it is no host's."""
    number = folder.removeprefix("worker-")
    return int(number) if number != folder and number.isascii() and number.isdigit() and len(number) < 9 else None


def output_shared(job: str, uid: str) -> str:
    """Return the folder for programs whose hosts write to one place."""
    return f"{outputs_of(job, uid)}shared"
