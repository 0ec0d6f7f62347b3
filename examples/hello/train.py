"""Fit a line on all devices of a job: the smallest training. It needs only JAX."""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp

SLOPE, OFFSET = 3.0, -1.0


def loss_of(weights: jax.Array, inputs: jax.Array) -> jax.Array:
    return jnp.mean((weights[0] * inputs + weights[1] - (SLOPE * inputs + OFFSET)) ** 2)


def step(weights: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One step on one device; the gradients of all devices are averaged."""
    loss, gradient = jax.value_and_grad(loss_of)(weights, inputs)
    loss, gradient = jax.lax.pmean((loss, gradient), "devices")
    return weights - 0.1 * gradient, loss


def main() -> None:
    arguments = argparse.ArgumentParser(description="Fits a line on all devices; see the docstring.")
    arguments.add_argument("--steps", type=int, default=100)
    options = arguments.parse_args()

    train_step = jax.pmap(step, axis_name="devices")
    weights = jnp.zeros((jax.local_device_count(), 2))
    for number in range(1, options.steps + 1):
        draw = jax.random.PRNGKey(number * jax.process_count() + jax.process_index())
        weights, loss = train_step(weights, jax.random.normal(draw, (jax.local_device_count(), 32)))
        if number % 20 == 0:
            print(f"step {number}: loss {float(loss[0]):.6f} on {jax.device_count()} devices", flush=True)


if __name__ == "__main__":
    main()
