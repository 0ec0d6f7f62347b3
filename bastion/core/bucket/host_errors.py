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
# The gate was closed, or belongs to another token.
GATE_CLOSED: Final = "GateClosed"
# The user's setup command failed.
SETUP_FAILED: Final = "SetupFailed"
# The bundle does not exist.
BUNDLE_MISSING: Final = "BundleMissing"
# The bundle has another digest, or cannot be unpacked safely.
BUNDLE_INVALID: Final = "BundleInvalid"
# The job's proxy settings are invalid, or name an unusable key.
PROXY_REFUSED: Final = "ProxyRefused"
# The encrypting storage proxy did not start, or failed; without it nothing is stored.
PROXY_FAILED: Final = "ProxyFailed"
# The job's files filled the disk, or exceeded their limit.
DISK_LIMIT: Final = "DiskLimit"

# Failures of the user, with an exit code like a command's. All others are infrastructure failures.
OF_THE_USER: Final = frozenset({SETUP_FAILED, BUNDLE_MISSING, BUNDLE_INVALID, PROXY_REFUSED, DISK_LIMIT})
