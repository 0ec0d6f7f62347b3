"""The coordinator: the address on host 0 of slice 0 where the hosts of a job meet. The claim publishes it."""

from __future__ import annotations

import hashlib
import socket

# JAX's own choice on TPU VMs, where it finds the coordinator by itself.
_TPU_PORT = 8482
# PyTorch's default.
_TORCH_PORT = 29500
# The only port that jax.distributed.initialize() without arguments finds before JAX 0.7.
_EMULATED_PORT = 8476
# Below the kernel's ephemeral ports.
_FIRST_PORT = 20000
_PORTS = 10000


def choose(address: str, *, run: str, emulated: bool, gpus: bool = False) -> str:
    """The coordinator's `address:port`. If emulated hosts share an address, the port depends on the run.

    So it does with GPUs, because PyTorch listens on all addresses of a machine.
    """
    if not emulated:
        return f"[{address}]:{_TPU_PORT}" if ":" in address else f"{address}:{_TPU_PORT}"
    if not gpus and _is_free(address, _EMULATED_PORT):
        return f"{address}:{_EMULATED_PORT}"
    start = int.from_bytes(hashlib.sha256(run.encode()).digest()[:4], "big")
    for step in range(100):
        port = _FIRST_PORT + (start + step) % _PORTS
        if _is_free(address, port) and (not gpus or _is_free("", port + 1)):
            return f"{address}:{port}"
    return f"{address}:{_FIRST_PORT + start % _PORTS}"


def host_of(coordinator: str) -> str:
    """The coordinator's address without its port."""
    return coordinator.rpartition(":")[0].strip("[]")


def torch_port(coordinator: str, *, emulated: bool) -> int:
    """Where PyTorch's processes meet on the coordinator's host."""
    return int(coordinator.rpartition(":")[2]) + 1 if emulated else _TORCH_PORT


def _is_free(address: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
