"""What everybody may do with each kind of object in a bastion's buckets, in mode `open` and in mode `inbox`."""

from __future__ import annotations

from collections.abc import Mapping

from bastion.core.bucket import keys
from bastion.core.bucket.keys import Run
from tests.support.rights.how_to import BASTION, BUCKET, PRIVATE
from tests.support.rights.stage import CREATE, DELETE, LIST, OVERWRITE, READ, Stage

# The rows of the page's table.
ROWS = {
    "users": ("user", "other user"),
    "daemon": ("daemon",),
    "workers": ("worker",),
    "administrators": ("admin",),
}
OTHERS = ("stranger", "other project's worker", "anonymous")

RUN = str(Run("abcdefghij", 1))
READS = {READ, LIST}
ADDS = {READ, LIST, CREATE}
WRITES = {READ, LIST, CREATE, OVERWRITE, DELETE}

# Each kind of object in the ROOT: what users and workers may do with it. Daemon and administrators may do everything.
IN_ROOT: dict[str, tuple[set[str], set[str]]] = {
    keys.active("job"): (WRITES, set()),
    keys.user_state("job"): (WRITES, set()),
    keys.request("job", "12345678"): (ADDS, set()),
    keys.state("job"): (READS, set()),
    keys.complete("job"): (READS, set()),
    keys.invalid("job"): (READS, set()),
    keys.claim(RUN, "tag"): (READS, ADDS),
    keys.order(RUN): (READS, READS),
    keys.report(RUN, 0): (READS, WRITES),
    keys.beat(RUN, 0): (READS, WRITES),
    keys.log("job"): (READS, READS),
    keys.log("alice-bastion-20260102"): (READS, READS),
    keys.log_segment("job", RUN, 0, 1): (READS, ADDS),
    "outputs/job/x": (READS, WRITES),
    "bundles/x.tar.gz": (ADDS, READS),
    "benchmarks/x/20260102T030405Z-0123abcd/matrix.json": (WRITES, set()),
    "agents/x/y": (READS, READS),
    keys.job_history("job"): (READS, set()),
    keys.audit("20260102"): (READS, set()),
    keys.STATUS: (READS, set()),
    # The lease is read by its name; a listing of the ROOT is not granted.
    keys.LEASE: (READS, {READ}),
    keys.RUNTIME_OPTIONS: (READS, set()),
    keys.PROJECT_QUOTAS: (READS, set()),
    keys.IDENTITY: (READS, set()),
    keys.IDENTITY_IN_FORCE: (READS, set()),
}
# With inboxes: of alice and bob, and what only looks like one of theirs.
INBOX_USERS = {"alice": "user", "bob": "other user"}
IN_INBOXES = [
    (name, key)
    for name in ("alice", "bob", "alice2", "al")
    for key in (keys.active("job", name), keys.user_state("job", name), keys.request("job", "12345678", name))
]
# What the daemon may do; administrators may do everything, and nobody else anything.
IN_PRIVATE = {keys.PROJECT_QUOTAS: READS, "releases/bastion-0.1.0-py3-none-any.whl": READS, keys.RUN_SECRET: ADDS}
# Beside the bastion's folder: nobody has anything there.
BESIDE = [
    (BUCKET, "bob-bastion/jobs/active/job"),
    (BUCKET, "alice-bastion2/lease"),
    (BUCKET, "x/y"),
    (PRIVATE, "bob-bastion/x"),
]


def expected(caller: str) -> dict[str, set[str]]:
    """In mode `open`, by bucket and key."""
    return _expected(caller, IN_ROOT)


def expected_with_inboxes(caller: str) -> dict[str, set[str]]:
    closed = {
        key: (READS, set[str]())
        for key in (keys.active("job"), keys.user_state("job"), keys.request("job", "12345678"))
    }
    own = {key: (WRITES if INBOX_USERS.get(name) == caller else READS, set[str]()) for name, key in IN_INBOXES}
    return _expected(caller, {**IN_ROOT, **closed, **own})


def _expected(caller: str, in_root: Mapping[str, tuple[set[str], set[str]]]) -> dict[str, set[str]]:
    found = {f"{bucket}/{name}": set[str]() for bucket, name in BESIDE}
    for key, (users, workers) in in_root.items():
        by_caller = {"user": users, "other user": users, "worker": workers, "daemon": WRITES, "admin": WRITES}
        found[f"{BUCKET}/{BASTION}/{key}"] = by_caller.get(caller, set())
    for key, daemons in IN_PRIVATE.items():
        found[f"{PRIVATE}/{BASTION}/{key}"] = {"daemon": daemons, "admin": WRITES}.get(caller, set())
    return found


def found(stage: Stage, caller: str, places: Mapping[str, object]) -> dict[str, set[str]]:
    """What a caller may do at each place, tried."""
    token = "" if caller == "anonymous" else caller
    return {place: stage.rights(token, *place.split("/", 1)) for place in places}
