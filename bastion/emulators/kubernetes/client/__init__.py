"""A small client of a Kubernetes API server, for the emulator's controllers and kubelet: requests, watches, caches.

It knows nothing of the emulator, so the same controllers run against a real API server.
"""

from bastion.emulators.kubernetes.client.informer import Informer, Key, OnChange, key, running
from bastion.emulators.kubernetes.client.requests import Address, ApiClient, ApiError, Obj, Unreachable, Watch

__all__ = [
    "Address",
    "ApiClient",
    "ApiError",
    "Informer",
    "Key",
    "Obj",
    "OnChange",
    "Unreachable",
    "Watch",
    "key",
    "running",
]
