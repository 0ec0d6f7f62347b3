"""Names of what can go wrong on a host, as its report's `error` gives them. The host writes them; the daemon decides by
them, because who pays for a failure depends on whose it is.
"""

from __future__ import annotations

from typing import Final

# The agent or the host started again after the command had begun; nothing runs twice.
HOST_RESTARTED: Final = "HostRestarted"
# The host was shut down, by whoever: an operator, the cloud.
HOST_SHUT_DOWN: Final = "HostShutDown"
# The host itself could not do its part: its disk refused, the command could not be started.
HOST_FAILED: Final = "HostFailed"
# The cloud took the host away for another customer.
PREEMPTED: Final = "Preempted"
# The cloud takes the host away to maintain it.
MAINTENANCE: Final = "Maintenance"
# The order could not be read for so long that another machine may run the command by now.
ORDER_LOST: Final = "OrderLost"
# The gate was closed, or belongs to another token.
GATE_CLOSED: Final = "GateClosed"
# The user's setup command failed.
SETUP_FAILED: Final = "SetupFailed"
# The user's code is not where the order says.
BUNDLE_MISSING: Final = "BundleMissing"
# It is there, and is not what the order says, or not what may be unpacked.
BUNDLE_INVALID: Final = "BundleInvalid"
# What the job says of the encrypting storage proxy makes no sense, or names a key that cannot be used.
PROXY_REFUSED: Final = "ProxyRefused"
# The encrypting storage proxy did not come up, or did not stay; without it nothing is stored.
PROXY_FAILED: Final = "ProxyFailed"
# The job's files filled the disk, or exceeded their limit.
DISK_LIMIT: Final = "DiskLimit"

# The user's own doing, with an exit code as a command has one. All others are the infrastructure's.
OF_THE_USER: Final = frozenset({SETUP_FAILED, BUNDLE_MISSING, BUNDLE_INVALID, PROXY_REFUSED, DISK_LIMIT})
