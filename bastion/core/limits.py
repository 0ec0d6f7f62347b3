"""Every limit of the system, each with its reason; `docs/reference/limits.md` is rendered from it."""

from __future__ import annotations

# Job specs. 64 KiB holds any real command line; a larger object is refused by its listed size, undownloaded.
SPEC_MAX_BYTES = 64 * 1024
# All of them travel in the order, and into one environment.
SPEC_MAX_ENV_VARS = 256
# Python's own recursion limit is 1000; a spec has no business nesting deeper than a few levels.
JSON_MAX_DEPTH = 32
# What the specs of all live jobs may take in the daemon's memory, packed; some 100,000 ordinary ones take half of it.
SPECS_KEPT_MAX_BYTES = 256 * 1024 * 1024
# Specs larger than this, hardly any, leave a quarter of that to the others.
SPEC_ORDINARY_MAX_BYTES = 8 * 1024
# Keys, values and containers of one spec. Parsed, each takes up to 150 bytes; 256 variables are some 1,000.
SPEC_MAX_VALUES = 4096
# The same of any other document; the state of a job with 100 past attempts and all their tries has some 50,000.
DOCUMENT_MAX_VALUES = 65_536
# Integers of a document: 64 bits have 19 digits and a sign. Python refuses to write one of over 4,300 digits.
JSON_INTEGER_MAX_CHARS = 20
# A job's name when we create it: VM names and DNS labels stop at 63.
NEW_NAME_MAX_CHARS = 63
# A job's name that we read: with what our keys add to it, it stays below the 255 bytes of a file's name.
NAME_MAX_CHARS = 128
# A job asks for something of a type or does not name it.
RESOURCE_MIN = 1
# More than any pool; keeps sums far from where integers stop being exact in other people's JSON.
RESOURCE_MAX = 1_000_000
# Resource types of one job; each costs a comparison in every scheduling pass.
RESOURCE_TYPES_MAX = 16
# The highest priority.
PRIORITY_MIN = 1
# The lowest priority.
PRIORITY_MAX = 5
# What a job gets that names none.
PRIORITY_DEFAULT = 5
# Slices of one gang; each is a call to the provisioning API.
NUM_REPLICAS_MAX = 256
# How long a job may be expected to run; a year, and beyond it an estimate is of no use to anybody.
EXPECTED_DURATION_MAX_SECONDS = 366 * 86400
# Runs of a command that fails before its failure counts; beyond it nobody looks at why.
TRIES_MAX = 100
# A spec from the bucket is quarantined only after it has been still this long: it may be half written.
QUARANTINE_STILL_SECONDS = 1.0
# Jobs whose attempts a new daemon cannot adopt, as their states cannot be read or written; the lease names them.
FENCE_EXEMPT_MAX = 64
# How long no job starts because a state cannot be read, or written by a new daemon. After that, only its own job waits,
# and what it holds or its spec asks for counts as in use.
UNREAD_STATE_SECONDS = 300.0
# A user request for an unknown job is deleted after this many ticks (the spec may arrive a moment later).
UNKNOWN_REQUEST_TICKS = 10

# Queued jobs of all users who are members of nothing, together; they wait for a quota file that names them.
OUTSIDERS_QUEUED_JOBS_MAX = 1000
# Specs that a tick reads at most, the oldest first; the next tick goes on.
SPECS_READ_MAX = 10_000
# Specs that are read before it is decided which of them the queue has room for; so many are in memory at once.
SPECS_READ_AT_ONCE = 1000
# Of owners with more jobs than the queue takes, the status shows those with the most.
BACKLOG_OWNERS_SHOWN = 100

# Thousands of projects; a larger file is a mistake, and is not downloaded.
QUOTA_FILE_MAX_BYTES = 1024 * 1024
# States, orders, claims, reports: ours, small; larger means foreign.
DOCUMENT_MAX_BYTES = 1024 * 1024

# A host's report: a phase, an exit code and a message of at most 1,000 characters.
REPORT_MAX_BYTES = 16 * 1024
# A claim: two names, a boot id and an address, or why the gate is closed.
CLAIM_MAX_BYTES = 16 * 1024
# An order holds the command and the environment of a spec, and why to stop.
ORDER_MAX_BYTES = 256 * 1024
# The lease: an owner, a process, some numbers.
LEASE_MAX_BYTES = 16 * 1024
# A result is a spec and up to 100 attempts.
RESULT_MAX_BYTES = DOCUMENT_MAX_BYTES + SPEC_MAX_BYTES
# What one read of an object takes into memory unless it says otherwise; a larger object is refused before it is read.
READ_MAX_BYTES = 64 * 1024 * 1024
# Jobs whose state cannot be read that alarms name; they only tell the number of the others.
ALARMS_OF_JOBS_MAX = 100
# Why an object cannot be read, as the status and `jobs/invalid/` show it.
PROBLEM_MAX_CHARS = 1000

# Cloud Storage's own limit; a store on a folder keeps it too, so that a bucket can move from one to the other.
OBJECT_KEY_MAX_BYTES = 1024
# Objects of one page of a listing on Cloud Storage; each page is a request.
LIST_PAGE_OBJECTS = 1000

# Why an attempt ended, in the words of a host or an API; a state keeps it for every attempt.
MESSAGE_MAX_CHARS = 1000
# A higher number of an attempt in the name of a claim or an order is not one of ours.
ATTEMPT_NUMBER_BELIEVED_MAX = 100_000
# Ticks that a daemon keeps as files for `bastion debug replay`, at most.
RECORDED_TICKS_MAX = 1000
# More lines than an attempt writes into its job's history.
HISTORY_LINES_OF_AN_ATTEMPT_MAX = 1000
# A gang of a later attempt than its job's state knows is nobody's after this long under one lease.
LATER_GANG_SECONDS = 120.0
# The last attempts that a state keeps: a job may wait for capacity for weeks. The history has a line for each.
PAST_ATTEMPTS_KEPT = 100

# Log lines longer than this are split into P (partial) pieces.
LOG_LINE_MAX_BYTES = 16 * 1024
# A log segment closes at this size, or after an interval.
LOG_SEGMENT_MAX_BYTES = 256 * 1024
# Where segments wait for the bucket, they grow to this: fewer requests for the same bytes.
LOG_SEGMENT_BACKLOG_BYTES = 4 * 1024 * 1024
# What a reader takes of one segment: the largest that a host writes, and a line more.
LOG_SEGMENT_READ_MAX_BYTES = 2 * LOG_SEGMENT_BACKLOG_BYTES
# Output of a command that waits on its host's disk for the bucket; beyond it the oldest goes, and the log says so.
LOG_SPOOL_MAX_BYTES = 1024 * 1024 * 1024
# The daemon's log starts anew at this size, or at midnight UTC.
DAEMON_LOG_ROLL_BYTES = 16 * 1024 * 1024
# Of a daemon's log that is larger than this, somebody else's object in its place, the end is kept.
DAEMON_LOG_READ_MAX_BYTES = 32 * 1024 * 1024

# A user's code as one compressed object; each host reads it as a whole.
BUNDLE_MAX_BYTES = 256 * 1024 * 1024
# The same code on the host's disk: a small file can unpack to any size.
BUNDLE_UNPACKED_MAX_BYTES = 4 * 1024 * 1024 * 1024
# Files and folders of it; each costs the host an inode.
BUNDLE_ENTRIES_MAX = 200_000

# Larger output files are stored in parts of this size: a part is in memory while it is sent.
OUTPUT_PART_BYTES = 32 * 1024 * 1024
# Files of one output folder, of which each costs a line of every manifest.
OUTPUT_FILES_MAX = 100_000
# Names, sizes and digests of so many files fit; anything larger is foreign.
OUTPUT_MANIFEST_MAX_BYTES = 64 * 1024 * 1024
# Keys, values and containers of it: some 20 of each file.
OUTPUT_MANIFEST_MAX_VALUES = 4_000_000
# How often a host looks at what changed in its output folder, about.
OUTPUT_PERIOD_SECONDS = 60.0
# What a host takes at most to store its outputs after the command's own end.
OUTPUT_FINAL_SECONDS = 600.0

# From its start until the encrypting storage proxy serves; one that takes longer hangs, and is started again.
PROXY_READY_SECONDS = 60.0
# The command waits for the proxy, or goes on with a proxy that does not come back, for so long; its key service may be
# out of reach for some minutes.
PROXY_BACK_SECONDS = 300.0
# So often it may end within the time below before it counts as broken.
PROXY_DEATHS_MAX = 5
# Two minutes: what ends less often has served in between.
PROXY_DEATHS_SECONDS = 120.0
# What it takes at most to end, once nothing needs it any more: uploads that a killed command left go nowhere.
PROXY_END_SECONDS = 5.0
# Its log waits on the host's disk for the bucket as the command's does, and is much less.
PROXY_LOG_SPOOL_MAX_BYTES = 64 * 1024 * 1024
# How often a host looks whether its command goes around the proxy.
PROXY_BYPASS_LOOK_SECONDS = 30.0

# Between SIGTERM and SIGKILL of a cancelled job. What is evicted gets its project's `grace_seconds`.
EVICTION_GRACE_SECONDS = 30.0
# The same where the cloud takes the host away: it gives notice of about 30 s, and the last log lines take some, too.
SIGNAL_GRACE_SECONDS = 25.0
# The same for the other hosts of a job of which one host failed.
FAILURE_GRACE_SECONDS = 5.0
# Beyond the grace period an unresponsive host's node is deleted anyway.
STOP_REPORT_SLACK_SECONDS = 30.0
# A cleanup command that still runs after this is stopped: the job's name is not free before.
CLEANUP_TIMEOUT_SECONDS = 600.0
# How often a host says that it is there.
HEARTBEAT_PERIOD_SECONDS = 30.0
# A host tells of a newer checkpoint no more often than this, about: each costs it a write and the daemon a read, and
# what is lost since is little anyway. The first after a longer pause is told at once.
CHECKPOINT_REPORT_SECONDS = 600.0
# Three silent periods, and a host counts as lost.
HEARTBEAT_LOST_SECONDS = 90.0
# The agent of a job without a slice stops its command after so long without reading its order: nobody can confirm the
# processes of a lost bastion VM gone.
BASTION_HOST_ORDER_LOST_SECONDS = 600.0
# Another VM starts such a job again only after so long without its heartbeat: longer than the order may be lost.
BASTION_HOST_HEARTBEAT_LOST_SECONDS = 900.0
# Commands that may run on the bastion VM itself at the same time. A user takes another slot only while more are free
# than it holds: nobody takes them all.
BASTION_HOST_JOBS_MAX = 32
# Cleanup commands that may run there at the same time, besides; a mass cancel must not start thousands. Users take them
# by the same rule.
CLEANUP_COMMANDS_MAX = 16
# Nodes that never get all hosts to report within this time are given up as an infrastructure failure.
PROVISION_TIMEOUT_SECONDS = 1800.0
# From so many hosts on they get twice the time: of many hosts, some are always late.
LARGE_GANG_HOSTS = 64
# From so many on, three times.
VERY_LARGE_GANG_HOSTS = 256
# A command that ran so long before it failed, while another host had not come up at all, may have failed for want of
# that host: jax.distributed waits 300 s for its peers, and no library known to us less than this.
MISSING_HOST_SECONDS = 120.0
# Attempts lost to infrastructure before a job fails with exit code 75.
INFRASTRUCTURE_ATTEMPTS_MAX = 5
# Of a job that ran longer than its project allows: what timeout(1) gives. It would run into the same limit again, so it
# is none of those that are worth another try.
OVERTIME_EXIT_CODE = 124
# Before the first new attempt after a loss; doubles with each further one.
INFRASTRUCTURE_BACKOFF_SECONDS = 10.0
# The most it grows to.
INFRASTRUCTURE_BACKOFF_MAX_SECONDS = 600.0
# Before capacity is asked for again once every zone was asked; doubles with each further round.
CAPACITY_BACKOFF_SECONDS = 10.0
# The most that the wait for capacity grows to, between two attempts: a stock-out may end at any moment.
CAPACITY_BACKOFF_MAX_SECONDS = 300.0
# A gang that waits for capacity in one zone for so long is given up for the next zone, if there is one.
ZONE_WAIT_SECONDS = 900.0
# The cloud drops a request so long after the daemon would have given it up: for when there is no daemon.
VALID_UNTIL_SLACK_SECONDS = 600.0
# A node whose command has ended, and that has seen no life of the daemon for so long, powers itself off: a dead bastion
# must not burn money.
POWER_OFF_SECONDS = 21600.0
# An attempt that ran this long before its hosts were lost proves that the job works: losses count from one again.
INFRASTRUCTURE_RESET_SECONDS = 600.0
# Of a history file no more than the end is read: the lines in question are its newest.
HISTORY_TAIL_BYTES = 4 * 1024 * 1024
# How long the status shows that a tick failed for a reason that nobody foresaw.
FAILED_TICK_ALARM_SECONDS = 3600.0
# History lines that the state of a job keeps for its project's history while the quota file does not have the project.
HISTORY_KEPT_FOR_PROJECT = 64
# Entries of some eighty thousand jobs; a larger status is a foreign file and is not downloaded.
STATUS_MAX_BYTES = 64 * 1024 * 1024
# Keys, values and containers of it: some 80 of each job.
STATUS_MAX_VALUES = 8_000_000
# Of a disk that carries jobs: below so much free space (or a twentieth of a small disk), the job with the most files is
# ended. Enough for the logs and states of all jobs while that one ends.
DISK_FLOOR_BYTES = 256 * 1024 * 1024
# Kept in a folder bucket for states, orders, requests and results (or a fiftieth of a small disk): thousands of them.
DISK_RESERVE_BYTES = 64 * 1024 * 1024
