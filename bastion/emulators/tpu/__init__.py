"""A local Cloud TPU: the gRPC API, VMs as process groups, and their metadata servers.

Run it with `python -m bastion.emulators.tpu --state-dir=DIR`. Every emulated VM imports this package, so it imports no
grpc and no google.
"""

from bastion.emulators.tpu.address import EmulatorAddress, locate

__all__ = ["EmulatorAddress", "locate"]
