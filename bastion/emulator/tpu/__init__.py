"""A local Cloud TPU: the gRPC API, VMs as process groups, and their metadata servers.

`python -m bastion.emulator.tpu --state-dir=DIR` is the program. What is imported here stays light (no grpc, no google),
because every emulated VM imports this package, too.
"""

from bastion.emulator.tpu.address import EmulatorAddress, locate

__all__ = ["EmulatorAddress", "locate"]
