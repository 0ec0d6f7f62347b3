"""A local Kubernetes cluster: the API server's subset, its controllers as clients of it, and pods as process groups.

Run it with `python -m bastion.emulators.kubernetes --state-dir=DIR`.
"""

from bastion.emulators.kubernetes.address import KubernetesAddress, locate

__all__ = ["KubernetesAddress", "locate"]
