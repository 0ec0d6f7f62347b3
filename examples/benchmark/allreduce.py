"""The sum of a vector over all devices of the slice, which all of them get."""

from __future__ import annotations

import os
from collections.abc import Callable

import measure

LENGTH = 1 << 18


def with_jax() -> Callable[[], object]:
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("device",))
    rows = NamedSharding(mesh, PartitionSpec("device"))
    shape = (jax.device_count(), LENGTH)
    values = jax.make_array_from_callback(shape, rows, lambda index: np.ones(shape, np.float32)[index])
    total = jax.jit(lambda x: x.sum(axis=0), out_shardings=NamedSharding(mesh, PartitionSpec()))
    return lambda: total(values).block_until_ready()


def with_torch() -> Callable[[], object]:
    import torch
    import torch_hosts
    from torch import distributed

    torch_hosts.join()
    values = torch.ones(LENGTH)
    return lambda: distributed.all_reduce(values.fill_(1.0))


def with_tensorflow() -> Callable[[], object]:
    import tensorflow as tf

    # As many devices as JAX has on this host.
    devices = int(os.environ.get("JAX_NUM_CPU_DEVICES", "1"))
    (processor,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * devices)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(devices)])

    @tf.function
    def total() -> tf.Tensor:
        def on_device() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.ones(LENGTH))

        return strategy.experimental_local_results(strategy.run(on_device))[0]

    return lambda: total().numpy()


if __name__ == "__main__":
    measure.main({"jax": with_jax, "torch": with_torch, "tensorflow": with_tensorflow}, steps=30)
