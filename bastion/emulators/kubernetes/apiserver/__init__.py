"""The API server: a subset of Kubernetes' API over HTTPS, held in memory and in one sqlite file.

What is not emulated is refused by name with 501.
"""

from bastion.emulators.kubernetes.apiserver.faults import ApiFaults, Fault
from bastion.emulators.kubernetes.apiserver.server import ApiServer

__all__ = ["ApiFaults", "ApiServer", "Fault"]
