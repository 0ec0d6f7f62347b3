"""A product of two square matrices, on one device of each host."""

from __future__ import annotations

from collections.abc import Callable

import measure
import numpy as np

SIZE = 512


def matrices() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    left, right = draw.normal(size=(2, SIZE, SIZE)).astype(np.float32)
    return left, right


def with_numpy() -> Callable[[], object]:
    left, right = matrices()
    return lambda: left @ right


def with_jax() -> Callable[[], object]:
    import jax

    left, right = (jax.device_put(each, jax.local_devices()[0]) for each in matrices())
    product = jax.jit(lambda a, b: a @ b)
    return lambda: product(left, right).block_until_ready()


def with_torch() -> Callable[[], object]:
    import torch

    left, right = map(torch.from_numpy, matrices())
    return lambda: left @ right


def with_tensorflow() -> Callable[[], object]:
    import tensorflow as tf

    left, right = map(tf.constant, matrices())
    product = tf.function(tf.linalg.matmul)
    return lambda: product(left, right).numpy()


if __name__ == "__main__":
    measure.main({"numpy": with_numpy, "jax": with_jax, "torch": with_torch, "tensorflow": with_tensorflow}, steps=30)
