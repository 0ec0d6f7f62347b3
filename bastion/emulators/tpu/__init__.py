"""A local Cloud TPU: the gRPC API, VMs as process groups, and their metadata servers.

Run it with `python -m bastion.emulators.tpu --state-dir=DIR`. Imports no grpc or google here: every emulated VM imports
this package too.
"""

from bastion.emulators.tpu.address import EmulatorAddress, locate

__all__ = ["EmulatorAddress", "locate"]
