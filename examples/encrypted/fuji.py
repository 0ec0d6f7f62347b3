"""Train a small transformer, with weights spread over all devices of a job and Orbax checkpoints in a bucket.

The network has the shape of a fuji (root-mean-square norms, rotary positions, gated feed-forward, no biases), scaled to
what a laptop can run. Every host writes its part of each checkpoint directly to `gs://BUCKET/FOLDER`: arrays through
tensorstore, the rest through gcsfs. Nothing here knows about encryption: with `bastion launch --proxy=...`, the bucket
gets ciphertext.

Each save and each restore prints its time, in the form that the acceptance test reads. A host that is told to
stop (SIGTERM) tells the others within the next step, so that all leave after the same one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from types import FrameType

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

VOCABULARY, HEADS = 4096, 8
LEARNING_RATE, DECAY_1, DECAY_2 = 3e-4, 0.9, 0.95

# Weights by name, or the whole state: {"weights": ..., "first": ..., "second": ..., "step": ...}.
Tree = dict[str, jax.Array]
State = dict[str, Tree | jax.Array]


def shapes(width: int, layers: int) -> dict[str, tuple[int, ...]]:
    """The weights; layers are stacked along the first axis."""
    inner = 8 * width // 3 // 16 * 16
    return {
        "embedding": (VOCABULARY, width),
        "attention_in": (layers, width, 3 * width),
        "attention_out": (layers, width, width),
        "gate": (layers, width, inner),
        "up": (layers, width, inner),
        "down": (layers, inner, width),
        "norms": (2 * layers + 1, width),
    }


def sharding_of(shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    """Split along the longest axis that divides evenly, so that every host holds, and saves, its part."""
    parts: list[str | None] = [None] * len(shape)
    even = [axis for axis, size in enumerate(shape) if size % mesh.size == 0]
    if even:
        parts[max(even, key=lambda axis: shape[axis])] = "data"
    return NamedSharding(mesh, PartitionSpec(*parts))


def initial_state(width: int, layers: int, mesh: Mesh) -> State:
    """Drawn from a fixed seed, each device its own part."""

    def drawn(number: int, name: str, shape: tuple[int, ...]) -> jax.Array:
        whole = np.ones(shape, np.float32)
        if name != "norms":
            whole = np.random.default_rng(number).normal(size=shape).astype(np.float32) / shape[-2] ** 0.5
        return jax.make_array_from_callback(shape, sharding_of(shape, mesh), lambda index: whole[index])

    def zeros(shape: tuple[int, ...]) -> jax.Array:
        sharding = sharding_of(shape, mesh)
        return jax.make_array_from_callback(shape, sharding, lambda index: np.zeros(shape, np.float32)[index])

    wanted = shapes(width, layers)
    everywhere = NamedSharding(mesh, PartitionSpec())
    return {
        "weights": {name: drawn(number, name, shape) for number, (name, shape) in enumerate(wanted.items())},
        "first": {name: zeros(shape) for name, shape in wanted.items()},
        "second": {name: zeros(shape) for name, shape in wanted.items()},
        "step": jax.make_array_from_callback((), everywhere, lambda _index: np.zeros((), np.int32)),
    }


def tokens(step: int, batch: int, length: int) -> np.ndarray:
    """What a step sees: sequences that can be learned, a function of the step alone."""
    draw = np.random.default_rng([1, step])
    starts, strides = draw.integers(0, VOCABULARY, (batch, 1)), draw.integers(1, 8, (batch, 1))
    return ((starts + strides * np.arange(length + 1)) % VOCABULARY).astype(np.int32)


def normed(values: jax.Array, scale: jax.Array) -> jax.Array:
    return values * jax.lax.rsqrt(jnp.mean(values * values, -1, keepdims=True) + 1e-6) * scale


def rotated(values: jax.Array) -> jax.Array:
    """Rotary positions; `values` is (batch, length, heads, width of a head)."""
    length, half = values.shape[1], values.shape[-1] // 2
    angles = jnp.arange(length)[:, None] / 10_000 ** (jnp.arange(half) / half)
    cosine, sine = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
    left, right = values[..., :half], values[..., half:]
    return jnp.concatenate([left * cosine - right * sine, right * cosine + left * sine], -1)


def loss_of(weights: Tree, batch: jax.Array) -> jax.Array:
    """Mean cross-entropy of the next token; `batch` is (sequences, length + 1)."""
    inputs, targets = batch[:, :-1], batch[:, 1:]
    stream = weights["embedding"][inputs]
    sequences, length, width = stream.shape
    mask = jnp.tril(jnp.ones((length, length), bool))
    for layer in range(weights["gate"].shape[0]):
        here = normed(stream, weights["norms"][2 * layer])
        queries, keys, values = (
            part.reshape(sequences, length, HEADS, -1)
            for part in jnp.split(here @ weights["attention_in"][layer], 3, axis=-1)
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", rotated(queries), rotated(keys)) / (width // HEADS) ** 0.5
        attention = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", attention, values).reshape(sequences, length, width)
        stream = stream + mixed @ weights["attention_out"][layer]
        here = normed(stream, weights["norms"][2 * layer + 1])
        gated = jax.nn.silu(here @ weights["gate"][layer]) * (here @ weights["up"][layer])
        stream = stream + gated @ weights["down"][layer]
    logits = normed(stream, weights["norms"][-1]) @ weights["embedding"].T
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1))


@partial(jax.jit, donate_argnums=0)
def train_step(state: State, batch: jax.Array, stops: jax.Array) -> tuple[State, jax.Array, jax.Array]:
    """One step of Adam; returns the new state, the loss, and how many devices' hosts were told to stop."""
    loss, slopes = jax.value_and_grad(loss_of)(state["weights"], batch)
    step = state["step"] + 1
    first = jax.tree.map(lambda old, slope: DECAY_1 * old + (1 - DECAY_1) * slope, state["first"], slopes)
    second = jax.tree.map(lambda old, slope: DECAY_2 * old + (1 - DECAY_2) * slope**2, state["second"], slopes)

    def moved(weight: jax.Array, mean: jax.Array, square: jax.Array) -> jax.Array:
        mean, square = mean / (1 - DECAY_1**step), square / (1 - DECAY_2**step)
        return weight - LEARNING_RATE * mean / (jnp.sqrt(square) + 1e-8)

    weights = jax.tree.map(moved, state["weights"], first, second)
    return {"weights": weights, "first": first, "second": second, "step": step}, loss, jnp.sum(stops)


class Checkpoints:
    """Of all hosts together, in one folder of a bucket."""

    def __init__(self, url: str) -> None:
        self._url = url
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(url, options=options)

    def newest(self, state: State) -> State:
        step = self._manager.latest_step()
        if step is None:
            return state
        _say(f"Restoring checkpoint from directory {self._url}/{step}")
        began = time.monotonic()
        restored = self._manager.restore(step, args=ocp.args.StandardRestore(state))
        jax.block_until_ready(restored)
        _say(f"Restored state from ckpt at step {step} in {time.monotonic() - began:.6f} seconds.")
        return restored

    def save(self, state: State) -> None:
        step = int(state["step"])
        began = time.monotonic()
        self._manager.save(step, args=ocp.args.StandardSave(state), force=True)
        self._manager.wait_until_finished()
        _say(f"Serialization of {self._url}/{step} completed in {time.monotonic() - began:.6f} seconds.")
        told = os.environ.get("BASTION_CHECKPOINT_FILE")
        if told:
            Path(told).touch()  # Bastion knows what stopping us would cost

    def close(self) -> None:
        self._manager.close()


def _say(line: str) -> None:
    if jax.process_index() == 0:
        print(line, flush=True)


def main() -> int:
    arguments = argparse.ArgumentParser(description="Trains a small transformer; see the docstring.")
    arguments.add_argument("--checkpoints", required=True, help="folder for checkpoints, as gs://BUCKET/FOLDER")
    arguments.add_argument("--steps", type=int, default=40)
    arguments.add_argument("--save_every", type=int, default=10, help="steps between two checkpoints")
    arguments.add_argument("--width", type=int, default=256)
    arguments.add_argument("--layers", type=int, default=4)
    arguments.add_argument("--length", type=int, default=64, help="tokens of a sequence")
    options = arguments.parse_args()

    mesh = Mesh(np.array(jax.devices()), ("data",))
    stopped: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        stopped.append(number)

    signal.signal(signal.SIGTERM, stop)  # after the first use of a device: JAX has a handler of its own, set there
    split = NamedSharding(mesh, PartitionSpec("data"))
    state = initial_state(options.width, options.layers, mesh)
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    checkpoints = Checkpoints(options.checkpoints)
    state = checkpoints.newest(state)
    first = int(state["step"])
    _say(f"begins at step {first}: {held / 2**20:.0f} MiB on {mesh.size} devices of {jax.process_count()} hosts")
    loss = jnp.zeros(())
    for step in range(first, options.steps):
        whole = tokens(step, mesh.size, options.length)
        batch = jax.make_array_from_callback(whole.shape, split, lambda index, whole=whole: whole[index])
        stops = jax.make_array_from_callback((mesh.size,), split, lambda _index: np.full(1, bool(stopped), np.int32))
        state, loss, stopping = train_step(state, batch, stops)
        if int(stopping):
            checkpoints.save(state)
            _say(f"stops after step {step + 1}")
            checkpoints.close()
            return 1
        if (step + 1) % options.save_every == 0:
            checkpoints.save(state)
            _say(f"step {step + 1} loss {float(loss):.6f}")
    _say("result " + json.dumps({"step": int(state["step"]), "loss": float(loss)}))
    checkpoints.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
