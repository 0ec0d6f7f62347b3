"""Steps of gradient descent for a network with one hidden layer; all hosts share a batch."""

from __future__ import annotations

from collections.abc import Callable

import measure
import numpy as np

INPUTS, HIDDEN, OUTPUTS, BATCH = 64, 512, 16, 512
RATE = 0.05


def weights() -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    shapes = ((INPUTS, HIDDEN), (HIDDEN, OUTPUTS))
    return [(draw.normal(size=shape) / shape[0] ** 0.5).astype(np.float32) for shape in shapes]


def batch(rows: int = BATCH) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(1)
    inputs = draw.normal(size=(rows, INPUTS)).astype(np.float32)
    return inputs, np.sin(inputs[:, :OUTPUTS])


def with_numpy() -> Callable[[], object]:
    first, second = weights()
    inputs, targets = batch()

    def step() -> None:
        nonlocal first, second
        hidden = np.maximum(inputs @ first, 0)
        error = (hidden @ second - targets) / BATCH
        change = (error @ second.T) * (hidden > 0)
        first, second = first - RATE * inputs.T @ change, second - RATE * hidden.T @ error

    return step


def with_jax() -> Callable[[], object]:
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("device",))
    everywhere, rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("device"))

    def place(values: np.ndarray, sharding: NamedSharding) -> jax.Array:
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

    inputs, targets = (place(each, rows) for each in batch())
    state = [place(each, everywhere) for each in weights()]

    def loss(state: list[jax.Array], inputs: jax.Array, targets: jax.Array) -> jax.Array:
        return jnp.mean((jnp.maximum(inputs @ state[0], 0) @ state[1] - targets) ** 2)

    @jax.jit
    def update(state: list[jax.Array], *data: jax.Array) -> list[jax.Array]:
        return [each - RATE * change for each, change in zip(state, jax.grad(loss)(state, *data), strict=True)]

    def step() -> None:
        nonlocal state
        state = jax.block_until_ready(update(state, inputs, targets))

    return step


def with_torch() -> Callable[[], object]:
    import torch
    import torch_hosts

    hosts = torch_hosts.join()
    state = [torch.from_numpy(each).requires_grad_() for each in weights()]
    inputs, targets = map(torch.from_numpy, batch(BATCH // hosts))

    def step() -> None:
        loss = ((torch.relu(inputs @ state[0]) @ state[1] - targets) ** 2).mean()
        changes = torch.autograd.grad(loss, state)
        with torch.no_grad():
            for each, change in zip(state, changes, strict=True):
                each -= RATE * torch_hosts.mean(change)

    return step


def with_tensorflow() -> Callable[[], object]:
    import tensorflow as tf

    state = [tf.Variable(each) for each in weights()]
    inputs, targets = map(tf.constant, batch())

    @tf.function
    def update() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.nn.relu(inputs @ state[0]) @ state[1] - targets) ** 2)
        for each, change in zip(state, tape.gradient(loss, state), strict=True):
            each.assign_sub(RATE * change)
        return loss

    return lambda: update().numpy()


if __name__ == "__main__":
    measure.main({"numpy": with_numpy, "jax": with_jax, "torch": with_torch, "tensorflow": with_tensorflow}, steps=30)
