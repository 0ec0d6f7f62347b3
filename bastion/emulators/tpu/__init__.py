"""A local Cloud TPU: the gRPC API, VMs as process groups, and their metadata servers.

Program: `python -m bastion.emulators.tpu --state-dir=DIR`. What is imported here stays light (no grpc, no google),
because every emulated VM imports this package, too.
"""

from bastion.emulators.tpu.address import EmulatorAddress, locate

__all__ = ["EmulatorAddress", "locate"]
