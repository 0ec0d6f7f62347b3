"""Every limit of the system, each with its reason; `docs/reference/limits.md` is rendered from it."""

from __future__ import annotations

# Size of a job spec; 64 KiB holds any real command line. A larger object is refused without a download.
SPEC_MAX_BYTES = 64 * 1024
# Environment variables of a job; the order and the command's environment hold all of them.
SPEC_MAX_ENV_VARS = 256
# Labels of a job.
LABELS_MAX = 32
# Characters of a job's labels, keys and values; the status has those of all live jobs.
LABELS_MAX_CHARS = 1024
# Nesting of a JSON document; a spec needs a few levels, and Python fails at 1,000.
JSON_MAX_DEPTH = 32
# Memory for the packed specs of all live jobs; 100,000 ordinary specs take half of it.
SPECS_KEPT_MAX_BYTES = 256 * 1024 * 1024
# Specs larger than this are rare and may use three quarters of that memory.
SPEC_ORDINARY_MAX_BYTES = 8 * 1024
# Keys, values and containers of a spec. Each takes up to 150 bytes when parsed; 256 variables are about 1,000.
SPEC_MAX_VALUES = 4096
# Keys, values and containers of any other document. A state with 100 past attempts has about 50,000.
DOCUMENT_MAX_VALUES = 65_536
# Characters of an integer: 64 bits take 19 digits and a sign. Python cannot format more than 4,300 digits.
JSON_INTEGER_MAX_CHARS = 20
# Length of the name of a new job: the maximum of VM names and DNS labels.
NEW_NAME_MAX_CHARS = 63
# Length of a job name that is read: with the additions of our keys it fits in a file name of 255 bytes.
NAME_MAX_CHARS = 128
# Units of a resource type that a job asks for; a job omits a type that it does not need.
RESOURCE_MIN = 1
# Units of a resource type that a job asks for: more than any pool, and exact in every JSON parser.
RESOURCE_MAX = 1_000_000
# Resource types of a job; each costs a comparison in every scheduling pass.
RESOURCE_TYPES_MAX = 16
# The highest priority.
PRIORITY_MIN = 1
# The lowest priority.
PRIORITY_MAX = 5
# The priority of a job that names none.
PRIORITY_DEFAULT = 5
# Jobs that Kueue has at once, running ones included; each costs objects in the cluster and a part of the status.
SUBMITTED_JOBS_MAX = 1000
# Conditions, and admission checks, of a job in a queue of Kueue that the status has.
QUEUE_FACTS_SHOWN = 8
# Slices of a gang; each is a call to the provisioning API.
NUM_REPLICAS_MAX = 256
# A job's expected duration: a year.
EXPECTED_DURATION_MAX_SECONDS = 366 * 86400
# Tries of a command that keeps failing.
TRIES_MAX = 100
# Jobs that one job waits for; each is looked up when the job is accepted.
AFTER_MAX = 64
# Length of the name of a group, as of a new job.
GROUP_MAX_CHARS = 63
# Age at which an invalid spec is quarantined; a younger one may be half written.
QUARANTINE_STILL_SECONDS = 1.0
# Jobs named in the lease because a new daemon could not adopt their attempts: it cannot read or write their states.
FENCE_EXEMPT_MAX = 64
# Time in which no job starts because a state cannot be read, or cannot be written by a new daemon. After that only its
# own job waits, and everything that job may hold counts as in use.
UNREAD_STATE_SECONDS = 300.0
# Ticks after which a user request for an unknown job is deleted; its spec may arrive a moment later.
UNKNOWN_REQUEST_TICKS = 10
# Size of a request about a job: a kind, names and a reason.
REQUEST_MAX_BYTES = 8 * 1024
# Length of the reason that a user gives with a hold.
REQUEST_REASON_MAX_CHARS = 200
# Number of the worker that a user says to have entered.
REQUEST_WORKER_MAX = 1_000_000
# Requests about one job that a tick answers, oldest first.
REQUESTS_OF_JOB_AT_ONCE = 16
# Answered requests that a state remembers, so that none is applied twice. More than a tick answers.
REQUESTS_REMEMBERED = 32
# Requests that a tick reads, and those for unknown jobs that it deletes.
REQUESTS_AT_ONCE = 500

# Queued jobs of all users without a project together; they wait for a quota file that names their users.
OUTSIDERS_QUEUED_JOBS_MAX = 1000
# Specs that one tick reads, oldest first, of each inbox in turn; the next tick continues.
SPECS_READ_MAX = 10_000
# Invalid specs after which a tick reads no more, in mode `inbox`: their answers must not hold up other users' jobs.
SPECS_REFUSED_MAX = 1000
# Specs in memory before the limits of the queue apply.
SPECS_READ_AT_ONCE = 1000
# Owners over their queue limit that the status shows, largest first.
BACKLOG_OWNERS_SHOWN = 100

# Size of the quota file: thousands of projects. A larger file is a mistake and is not downloaded.
QUOTA_FILE_MAX_BYTES = 1024 * 1024
# Size of a document that the daemon writes, such as a state; a larger one is foreign.
DOCUMENT_MAX_BYTES = 1024 * 1024

# Size of a host's report: a phase, an exit code and a message of at most 1,000 characters.
REPORT_MAX_BYTES = 16 * 1024
# Size of a claim: two names, a boot id and addresses of up to 256 hosts, or why the gate is closed.
CLAIM_MAX_BYTES = 16 * 1024
# Size of the object that holds the secret of the runs.
RUN_SECRET_MAX_BYTES = 1024
# Size of an order: the command and environment of a spec, and why to stop.
ORDER_MAX_BYTES = 256 * 1024
# Size of the lease: an owner, a process, some numbers.
LEASE_MAX_BYTES = 16 * 1024
# Size of a result: a spec and up to 100 attempts.
RESULT_MAX_BYTES = DOCUMENT_MAX_BYTES + SPEC_MAX_BYTES
# Default maximum of one read; a larger object is refused before it is read.
READ_MAX_BYTES = 64 * 1024 * 1024
# Jobs with an unreadable state that alarms name; the others are only counted.
ALARMS_OF_JOBS_MAX = 100
# Length of the reason why an object cannot be read, in the status and in `jobs/invalid/`.
PROBLEM_MAX_CHARS = 1000
# What the status shows of the reason why an object in an inbox is refused.
PROBLEM_SHOWN_MAX_CHARS = 300

# Length of a key: Cloud Storage's limit. Folder buckets keep it too, so that their objects can be copied to a cloud
# bucket.
OBJECT_KEY_MAX_BYTES = 1024
# Objects of one page of a listing on Cloud Storage; each page is a request.
LIST_PAGE_OBJECTS = 1000

# Length of the reason why an attempt ended; a state keeps it for every attempt.
MESSAGE_MAX_CHARS = 1000
# Attempt number in the name of a claim or an order; a higher one is not ours.
ATTEMPT_NUMBER_BELIEVED_MAX = 100_000
# Number of a log segment or of a sync of outputs after which a host goes on; a higher one is not ours, since a host
# never gets that far. Numbers have ten digits.
SEQUENCE_NUMBER_BELIEVED_MAX = 1_000_000_000
# Ticks that a daemon keeps as files for `bastion debug replay`.
RECORDED_TICKS_MAX = 1000
# History lines of an attempt: more than one ever writes.
HISTORY_LINES_OF_AN_ATTEMPT_MAX = 1000
# Age, under one lease, at which a gang counts as an orphan if its attempt is later than its job's state knows.
LATER_GANG_SECONDS = 120.0
# Newest past attempts that a state keeps; the history has a line for each attempt.
PAST_ATTEMPTS_KEPT = 100

# Length of a log line; a longer one is split into P (partial) pieces.
LOG_LINE_MAX_BYTES = 16 * 1024
# Size at which a log segment closes; it also closes after an interval.
LOG_SEGMENT_MAX_BYTES = 256 * 1024
# Size of a segment that waits for the bucket: fewer requests for the same bytes.
LOG_SEGMENT_BACKLOG_BYTES = 4 * 1024 * 1024
# Size of a segment that a reader accepts: the largest that a host writes and one more line.
LOG_SEGMENT_READ_MAX_BYTES = 2 * LOG_SEGMENT_BACKLOG_BYTES
# Output that waits on a host's disk for the bucket. Beyond it the oldest is dropped and a gap line says so.
LOG_SPOOL_MAX_BYTES = 1024 * 1024 * 1024
# Size at which the daemon starts a new log; it also does so at midnight UTC.
DAEMON_LOG_ROLL_BYTES = 16 * 1024 * 1024
# Size of a daemon's log that is kept. Of a larger one, which someone else wrote, the daemon keeps the end.
DAEMON_LOG_READ_MAX_BYTES = 32 * 1024 * 1024

# Size at which the audit trail of a day goes on in another object.
AUDIT_PART_BYTES = 16 * 1024 * 1024
# Length of a line of the audit trail that a reader accepts; a daemon writes lines of about 3 KB at most.
AUDIT_LINE_MAX_BYTES = 16 * 1024
# Lines that wait in memory while the audit trail cannot be written. Beyond it the oldest are dropped, and the trail
# says how many.
AUDIT_LINES_WAITING_MAX = 10_000
# Refused or ignored requests of an hour that have lines of their own in the audit trail: of one user, and of all. The
# others are counted, once a tick.
AUDIT_REFUSALS_OF_USER_MAX = 100
AUDIT_REFUSALS_MAX = 1000
# Time for which answers to refused requests, and the end of jobs, wait for an audit trail that cannot be written.
AUDIT_PATIENCE_SECONDS = 60.0

# Size of a user's packed code; each host reads it as a whole.
BUNDLE_MAX_BYTES = 256 * 1024 * 1024
# Size of a user's code on a host's disk; a small archive can unpack to any size.
BUNDLE_UNPACKED_MAX_BYTES = 4 * 1024 * 1024 * 1024
# Files and folders of a user's code; each costs the host an inode.
BUNDLE_ENTRIES_MAX = 200_000

# Inputs of a job.
INPUTS_MAX = 16
# Objects of one input: each costs a request and an inode.
INPUT_OBJECTS_MAX = 20_000_000
# Default size of the folder that keeps inputs on a host.
INPUT_CACHE_GIB = 100
# Objects in each part of an input's pinned listing; a part is in memory while its objects are fetched.
INPUT_PART_OBJECTS = 10_000
# Size of such a part, packed; a larger one is foreign.
INPUT_PART_MAX_BYTES = 16 * 1024 * 1024
# Bytes that one request fetches of a large input; each thread has as many in memory.
INPUT_RANGE_BYTES = 8 * 1024 * 1024
# Size of the parts in which a large output file is stored; a part is in memory while it is sent.
OUTPUT_PART_BYTES = 32 * 1024 * 1024
# Files of one output folder; each is a line of every manifest.
OUTPUT_FILES_MAX = 100_000
# Size of a manifest with that number of names, sizes and digests; a larger one is foreign.
OUTPUT_MANIFEST_MAX_BYTES = 64 * 1024 * 1024
# Keys, values and containers of a manifest: about 20 per file.
OUTPUT_MANIFEST_MAX_VALUES = 4_000_000
# Approximate interval at which a host stores changes of its output folder.
OUTPUT_PERIOD_SECONDS = 60.0
# Time for storing outputs after the command has ended.
OUTPUT_FINAL_SECONDS = 600.0

# What a host stores of the lines in a job's results file and of its MLLOG lines, in the form in which they are stored.
RESULTS_MAX_BYTES = 1024 * 1024
# Lines of these; a benchmark that needs more reports every tenth step.
RESULTS_MAX_LINES = 10_000
# Length of such a line; of a longer one only the beginning is stored, which is no longer valid.
RESULTS_LINE_MAX_BYTES = 16 * 1024
# Size of a results file that a host reads; lines after that are dropped, however many were too long before.
RESULTS_FILE_READ_MAX_BYTES = 64 * 1024 * 1024
# Size of a host's stored results, with the facts about its environment; a larger object is foreign.
RESULTS_DOCUMENT_MAX_BYTES = 2 * RESULTS_MAX_BYTES
# Time for the command's Python to name its packages.
RESULTS_ASK_SECONDS = 20.0

# Time from the start of the encrypting storage proxy until it serves; a slower one hangs and is restarted.
PROXY_READY_SECONDS = 60.0
# Time that the command waits for the proxy, or runs without a proxy that does not return; its key service may be
# unreachable for minutes.
PROXY_BACK_SECONDS = 300.0
# Deaths of the proxy within `PROXY_DEATHS_SECONDS` after which it counts as broken.
PROXY_DEATHS_MAX = 5
# The period for counting deaths of the proxy; one that dies less often has served in between.
PROXY_DEATHS_SECONDS = 120.0
# Time for the proxy to end once nothing needs it. Uploads that a killed command left are dropped.
PROXY_END_SECONDS = 5.0
# Log of the proxy that waits on a host's disk for the bucket; it is much less than a command's.
PROXY_LOG_SPOOL_MAX_BYTES = 64 * 1024 * 1024
# Interval at which a host checks whether its command bypasses the proxy.
PROXY_BYPASS_LOOK_SECONDS = 30.0

# Time from SIGTERM to SIGKILL of a cancelled job. An evicted job has its project's `grace_seconds`.
EVICTION_GRACE_SECONDS = 30.0
# The same when the cloud takes the host away: its notice is about 30 s, and the last log lines need some of that.
SIGNAL_GRACE_SECONDS = 25.0
# The same for the other hosts of a job after one host failed.
FAILURE_GRACE_SECONDS = 5.0
# Time beyond the grace period after which the node of an unresponsive host is deleted.
STOP_REPORT_SLACK_SECONDS = 30.0
# Time after which a cleanup command is stopped; until it ends, the job's name is not free.
CLEANUP_TIMEOUT_SECONDS = 600.0
# The longest such time that a job may ask for.
CLEANUP_MAX_SECONDS = 86400
# Runs of a cleanup command that keeps failing.
CLEANUP_TRIES_MAX = 5
# Interval of a host's heartbeats.
HEARTBEAT_PERIOD_SECONDS = 30.0
# Approximate minimum interval of reports about new checkpoints: each costs a write and a read. The first one after a
# longer pause is reported at once.
CHECKPOINT_REPORT_SECONDS = 600.0
# Silence after which a host counts as lost: three heartbeats.
HEARTBEAT_LOST_SECONDS = 90.0
# Part of a pod's grace that is kept for its last log and report.
POD_REPORT_SECONDS = 10.0

# Time after which the agent of a job without a slice stops its command if it cannot read its order: nobody can confirm
# that the processes of a lost bastion VM are gone.
BASTION_HOST_ORDER_LOST_SECONDS = 600.0
# Silence after which another VM starts such a job again: longer than `BASTION_HOST_ORDER_LOST_SECONDS`.
BASTION_HOST_HEARTBEAT_LOST_SECONDS = 900.0
# Commands that run on the bastion VM at the same time. A user gets another slot only while more are free than the user
# holds, so that nobody takes all.
BASTION_HOST_JOBS_MAX = 32
# Processes and threads of one such job, which shares the machine's with the daemon.
HOST_JOB_PROCESSES_MAX = 4096
# Cleanup commands that run there at the same time, under the same rule; cancelling many jobs must not start thousands.
CLEANUP_COMMANDS_MAX = 16
# Time for all hosts of a gang to report; after it the attempt ends as an infrastructure failure.
PROVISION_TIMEOUT_SECONDS = 1800.0
# Hosts from which a gang gets twice that time: of many hosts some are always late.
LARGE_GANG_HOSTS = 64
# Hosts from which a gang gets three times that time.
VERY_LARGE_GANG_HOSTS = 256
# Run time after which a failure may be due to a host that never came up: jax.distributed waits 300 s for its peers, and
# no library known to us waits less than this.
MISSING_HOST_SECONDS = 120.0
# Attempts lost to infrastructure before a job fails with exit code 75.
INFRASTRUCTURE_ATTEMPTS_MAX = 5
# Exit code of a job that reached its own time limit or its project's maximum runtime, as of timeout(1). It is not
# retried, because it would reach the limit again.
OVERTIME_EXIT_CODE = 124
# Time after a job's own limit at which its hosts end it by themselves; before that the daemon does.
OVERTIME_HOST_SLACK_SECONDS = 2.0
# Shortest time without a sign after which a job may count as stuck; hosts look every few seconds.
STUCK_AFTER_MIN_SECONDS = 5
# Restarts in place of a job that is stuck time after time, before it fails.
STUCK_RESTARTS_MAX = 3
# Time with signs of life before a try got stuck that proves that the job works; restarts are counted from one again.
STUCK_RESET_SECONDS = 3600.0
# Exit code of a job that is stuck again after its last restart, as of timeout(1).
STUCK_EXIT_CODE = 124
# Time for the stacks of a stuck command's processes on one host.
STACKS_SECONDS = 20.0
# Processes of a host whose stacks are shown; their log lines are many.
STACKS_PROCESSES_MAX = 32
# How long a host waits for a bucket that refuses what it allowed before: credentials that expired may be renewed.
REFUSED_MAX_SECONDS = 600.0
# Secrets of a job; each is a line in the order and a variable of the command.
SECRETS_MAX = 32
# Size of a secret's value.
SECRET_MAX_BYTES = 64 * 1024
# Of all values of a job: with the other variables they must fit in a process's environment, often 2 MiB.
SECRETS_MAX_BYTES = 1024 * 1024
# Pause before the first new attempt after a loss; it doubles with each further one.
INFRASTRUCTURE_BACKOFF_SECONDS = 10.0
# Maximum of that pause.
INFRASTRUCTURE_BACKOFF_MAX_SECONDS = 600.0
# Pause before asking for capacity again after every zone was asked; it doubles with each round.
CAPACITY_BACKOFF_SECONDS = 10.0
# Maximum of that pause; a stockout may end at any moment.
CAPACITY_BACKOFF_MAX_SECONDS = 300.0
# Time that a gang waits for capacity in one zone before it moves to the next zone, if there is one.
ZONE_WAIT_SECONDS = 900.0
# Time after the daemon's own limit at which the cloud drops a request, in case no daemon runs.
VALID_UNTIL_SLACK_SECONDS = 600.0
# Time after which a node whose command has ended powers itself off if the daemon shows no sign of life; a dead bastion
# must not waste money.
POWER_OFF_SECONDS = 21600.0
# Run time before a loss that proves that the job works; losses are counted from one again.
INFRASTRUCTURE_RESET_SECONDS = 600.0
# Bytes read from the end of a history file, which has the newest lines.
HISTORY_TAIL_BYTES = 4 * 1024 * 1024
# Time for which the status shows that a tick failed unexpectedly.
FAILED_TICK_ALARM_SECONDS = 3600.0
# History lines that a job's state keeps for its project's history while the quota file lacks the project.
HISTORY_KEPT_FOR_PROJECT = 64
# Size of the status: about 80,000 jobs. A larger one is foreign and is not downloaded.
STATUS_MAX_BYTES = 64 * 1024 * 1024
# Keys, values and containers of the status: about 80 per job.
STATUS_MAX_VALUES = 8_000_000
# Size of a document of a benchmark: 1,000 cells with ten jobs each, or 10,000 values of one job, take about 1 MiB.
BENCHMARK_DOCUMENT_MAX_BYTES = 16 * 1024 * 1024
# Keys, values and containers of such a document.
BENCHMARK_DOCUMENT_MAX_VALUES = 2_000_000
# Cells of a benchmark; a report of more could not be read.
BENCHMARK_CELLS_MAX = 1000
# Jobs of a benchmark: its cells times its repeats. Each costs some requests when it is submitted and collected.
BENCHMARK_JOBS_MAX = 10_000
# Repeats of a cell; the interval of its median gets narrower with their square root.
BENCHMARK_REPEATS_MAX = 100
# Metrics of a benchmark.
BENCHMARK_METRICS_MAX = 64
# Command lines of a benchmark's `up` or `down`; a script holds more.
BENCHMARK_LINES_MAX = 32
# Characters of a value in a benchmark's matrix; it stands in names, plots and command lines.
BENCHMARK_VALUE_MAX_CHARS = 200
# Size of a benchmark's file.
BENCHMARK_FILE_MAX_BYTES = 256 * 1024
# Time for a client to submit all jobs of a benchmark, and half a second for each; then the run is torn down.
BENCHMARK_SUBMIT_SECONDS = 600.0
# Time for all lines of a benchmark's `up`, and of its `down`; Terraform takes 20 minutes for a cluster.
BENCHMARK_ENVIRONMENT_SECONDS = 3600.0
# Time for the jobs of a benchmark to end after they were cancelled; slices may take minutes to be deleted.
BENCHMARK_STOP_SECONDS = 1800.0
# Runnings of a benchmark's tear-down, if the first ones fail.
BENCHMARK_FINISH_TRIES = 3
# Free space of a disk with jobs (or a twentieth of a small disk) below which the job with the most files is ended. It
# holds the logs and states of all jobs while that one ends.
DISK_FLOOR_BYTES = 256 * 1024 * 1024
# Space kept in a folder bucket (or a fiftieth of a small disk) for thousands of states, orders, requests and results.
DISK_RESERVE_BYTES = 64 * 1024 * 1024
