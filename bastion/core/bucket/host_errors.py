"""Names of failures on a host, for a report's `error`. The daemon decides by them whose failure it is."""

from __future__ import annotations

from typing import Final

# The agent or the host restarted after the command had begun; nothing runs twice.
HOST_RESTARTED: Final = "HostRestarted"
# An operator or the cloud shut the host down.
HOST_SHUT_DOWN: Final = "HostShutDown"
# The host failed: a disk error, or the command could not be started.
HOST_FAILED: Final = "HostFailed"
# The cloud took the host away for another customer.
PREEMPTED: Final = "Preempted"
# The cloud takes the host away to maintain it.
MAINTENANCE: Final = "Maintenance"
# The order was unreadable for so long that another machine may run the command now.
ORDER_LOST: Final = "OrderLost"
# The job's time (`--max_run`) was over, and no order to stop had come.
OVERTIME: Final = "Overtime"
# The gate was closed, or belongs to another token.
GATE_CLOSED: Final = "GateClosed"
# The user's setup command failed.
SETUP_FAILED: Final = "SetupFailed"
# The bundle does not exist.
BUNDLE_MISSING: Final = "BundleMissing"
# The bundle has another digest, or cannot be unpacked safely.
BUNDLE_INVALID: Final = "BundleInvalid"
# An input cannot be read: it does not exist, or the host's identity may not.
INPUT_MISSING: Final = "InputMissing"
# An input cannot be put into the job's folder: its names, or files of the job's code in the way.
INPUT_INVALID: Final = "InputInvalid"
# An input changed after it was listed.
INPUT_CHANGED: Final = "InputChanged"
# The host's identity may not store outputs where the job wants them.
OUTPUT_REFUSED: Final = "OutputRefused"
# The job's proxy settings are invalid, or name an unusable key.
PROXY_REFUSED: Final = "ProxyRefused"
# A secret of the job has no value on the host, or one that a variable cannot have.
SECRET_UNREADABLE: Final = "SecretUnreadable"
# The encrypting storage proxy did not start, or failed; without it nothing is stored.
PROXY_FAILED: Final = "ProxyFailed"
# The job's files filled the disk, or exceeded their limit, or its inputs do not fit on it.
DISK_LIMIT: Final = "DiskLimit"

# Failures of the user, with an exit code like a command's. All others are infrastructure failures.
OF_THE_USER: Final = frozenset(
    {
        SETUP_FAILED,
        BUNDLE_MISSING,
        BUNDLE_INVALID,
        INPUT_MISSING,
        INPUT_INVALID,
        INPUT_CHANGED,
        OUTPUT_REFUSED,
        PROXY_REFUSED,
        DISK_LIMIT,
        SECRET_UNREADABLE,
    }
)
