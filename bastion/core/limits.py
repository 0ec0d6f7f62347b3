"""Every limit of the system in one place; `docs/reference/limits.md` is rendered from it.

A limit is here because something breaks, costs money or harms others beyond it; the comment says which.
"""

from __future__ import annotations

# Job specs. 64 KiB holds any real command line; a larger object is refused by its listed size, undownloaded.
SPEC_MAX_BYTES = 64 * 1024
SPEC_MAX_ENV_VARS = 256
# Python's own recursion limit is 1000; a spec has no business nesting deeper than a few levels.
JSON_MAX_DEPTH = 32
# VM names and DNS labels stop at 63.
NAME_MAX_CHARS = 63
RESOURCE_MIN = 1
RESOURCE_MAX = 1_000_000
# Resource types of one job; each costs a comparison in every scheduling pass.
RESOURCE_TYPES_MAX = 16
PRIORITY_MIN = 1
PRIORITY_MAX = 5
PRIORITY_DEFAULT = 5
NUM_REPLICAS_MAX = 256
# A wish or spec from the bucket is quarantined only after it has been still this long: it may be half written.
QUARANTINE_STILL_SECONDS = 1.0
# A wish for a job nobody knows is deleted after this many ticks (the spec may arrive a moment later).
UNKNOWN_WISH_TICKS = 10

QUOTA_FILE_MAX_BYTES = 1024 * 1024
# States, orders, claims, reports: ours, small; larger means foreign.
DOCUMENT_MAX_BYTES = 1024 * 1024

# Cloud Storage's own limit; a store on a folder keeps it too, so that a bucket can move from one to the other.
OBJECT_KEY_MAX_BYTES = 1024

# Log lines longer than this are split into P (partial) pieces; segments close at this size.
LOG_LINE_MAX_BYTES = 16 * 1024
LOG_SEGMENT_MAX_BYTES = 256 * 1024
DAEMON_LOG_ROLL_BYTES = 16 * 1024 * 1024

# Grace between the stop order's SIGTERM and SIGKILL.
EVICTION_GRACE_SECONDS = 30.0
FAILURE_GRACE_SECONDS = 5.0
# Beyond the grace period an unresponsive host's node is deleted anyway.
STOP_REPORT_SLACK_SECONDS = 30.0
CLEANUP_TIMEOUT_SECONDS = 600.0
# A host beats every 30 s; three silent periods and it counts as lost.
BEAT_PERIOD_SECONDS = 30.0
BEAT_LOST_SECONDS = 90.0
# A job without a slice runs on the bastion VM; its agent stops it after 10 min without reading its order, and
# another VM starts it anew only after 15 min without its beat: nobody can confirm a lost VM's processes gone.
BASTION_HOST_ORDER_LOST_SECONDS = 600.0
BASTION_HOST_BEAT_LOST_SECONDS = 900.0
# Commands that may run on the bastion VM itself at the same time.
BASTION_HOST_JOBS_MAX = 32
# Nodes that never get all hosts to report within this time are given up as an infrastructure failure.
PROVISION_TIMEOUT_SECONDS = 1800.0
# Attempts lost to infrastructure before a job fails with exit code 75.
INFRASTRUCTURE_ATTEMPTS_MAX = 5
INFRASTRUCTURE_BACKOFF_SECONDS = 10.0
INFRASTRUCTURE_BACKOFF_MAX_SECONDS = 600.0
