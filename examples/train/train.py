"""Train a small network on all devices of a job, with Orbax checkpoints that survive the loss of any host.

Runs on one host or many, on TPU or CPU. The data are generated: sample n is a function of n, and step s sees the
samples [s * batch, (s + 1) * batch), so every run sees the same data in the same order, wherever it begins.

What makes it safe to stop at any time:

* Host 0 saves; with `--output_sync=worker0` every host of the next attempt finds what it saved. Orbax marks complete
  checkpoints, so a half-written one is never used.
* A host that is told to stop (SIGTERM) tells the others within the next step, so all of them leave after the same one.
* Everything that the next step depends on is in the checkpoint. The sample counts are there to prove it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import FrameType

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

INPUTS, HIDDEN, OUTPUTS = 16, 64, 4
LEARNING_RATE, MOMENTUM = 0.05, 0.9

State = dict[str, jax.Array]


def initial_state(samples: int) -> dict[str, np.ndarray]:
    """Weights, their momentum, the next step, the last loss, and how often each sample was seen."""
    draw = np.random.default_rng(0)
    weights = {
        "in": draw.normal(size=(INPUTS, HIDDEN)) / INPUTS**0.5,
        "out": draw.normal(size=(HIDDEN, OUTPUTS)) / HIDDEN**0.5,
    }
    state = {name: value.astype(np.float32) for name, value in weights.items()}
    state |= {f"momentum_{name}": np.zeros_like(value) for name, value in state.items()}
    return state | {
        "step": np.zeros((), np.int32),
        "loss": np.zeros((), np.float32),
        "seen": np.zeros(samples, np.int32),
    }


def samples(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of these samples; each depends on its number alone."""
    inputs = np.stack([np.random.default_rng([1, int(number)]).normal(size=INPUTS) for number in numbers])
    teacher = np.random.default_rng(2).normal(size=(INPUTS, OUTPUTS)) / INPUTS**0.5
    return inputs.astype(np.float32), np.sin(inputs @ teacher).astype(np.float32)


def loss_of(weights: Mapping[str, jax.Array], inputs: jax.Array, targets: jax.Array) -> jax.Array:
    return jnp.mean((jnp.tanh(inputs @ weights["in"]) @ weights["out"] - targets) ** 2)


@partial(jax.jit, donate_argnums=0)
def train_step(
    state: State, numbers: jax.Array, inputs: jax.Array, targets: jax.Array, stops: jax.Array
) -> tuple[State, jax.Array]:
    """One step on one global batch; returns the new state, and how many devices' hosts were told to stop."""
    weights = {name: state[name] for name in ("in", "out")}
    loss, gradients = jax.value_and_grad(loss_of)(weights, inputs, targets)
    new = {"step": state["step"] + 1, "loss": loss, "seen": state["seen"].at[numbers].add(1)}
    for name, gradient in gradients.items():
        new[f"momentum_{name}"] = MOMENTUM * state[f"momentum_{name}"] + gradient
        new[name] = weights[name] - LEARNING_RATE * new[f"momentum_{name}"]
    return new, jnp.sum(stops)


class Checkpoints:
    """Host 0's checkpoints, and every host's way to what host 0 saved in an earlier attempt."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        mine = jax.process_index()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2,
            create=False,
            enable_async_checkpointing=False,
            # Each process alone: the weights are on all of them, and the folder is not shared.
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                primary_host=mine, active_processes={mine}, barrier_sync_key_prefix=f"host{mine}"
            ),
        )
        self._saves = mine == 0
        self._manager = ocp.CheckpointManager(folder, options=options)

    def newest(self, empty: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        step = self._manager.latest_step()
        if step is None:
            return empty
        return self._manager.restore(step, args=ocp.args.StandardRestore(empty))

    def save(self, state: State) -> None:
        if not self._saves:
            return
        step = int(state["step"])
        self._manager.save(step, args=ocp.args.StandardSave(jax.tree.map(np.asarray, state)))
        self._manager.wait_until_finished()
        print(f"saved step {step}", flush=True)
        told = os.environ.get("BASTION_CHECKPOINT_FILE")
        if told:
            Path(told).touch()  # Bastion stores it now, and knows what stopping us would cost

    def close(self) -> None:
        self._manager.close()


class StopSignal:
    """Whether this host was told to stop."""

    def __init__(self) -> None:
        self.came = False
        signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.came = True


def main() -> int:
    arguments = argparse.ArgumentParser(description="Trains a small network; see the docstring.")
    arguments.add_argument("--steps", type=int, default=200)
    arguments.add_argument("--batch", type=int, default=64, help="samples of a step, over all devices")
    arguments.add_argument("--save_every", type=int, default=20, help="steps between two checkpoints")
    arguments.add_argument("--pace", type=float, default=0.0, help="seconds that a step takes at least")
    options = arguments.parse_args()

    mesh = Mesh(np.array(jax.devices()), ("data",))
    told_to_stop = StopSignal()  # after the first use of a device: JAX has a handler of its own, set there
    split, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())

    def spread(value: np.ndarray, sharding: NamedSharding) -> jax.Array:
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    folder = Path(os.environ.get("BASTION_OUTPUT_DIR", "out")).absolute()
    checkpoints = Checkpoints(folder / "checkpoints")
    start = checkpoints.newest(initial_state(options.steps * options.batch))
    state = {name: spread(np.asarray(value), everywhere) for name, value in start.items()}
    first = int(start["step"])
    print(f"begins at step {first} on {jax.device_count()} devices of {jax.process_count()} hosts", flush=True)

    for step in range(first, options.steps):
        began = time.monotonic()
        numbers = np.arange(step * options.batch, (step + 1) * options.batch, dtype=np.int32)
        batch = [spread(value, split) for value in (numbers, *samples(numbers))]
        stops = jax.make_array_from_callback(
            (jax.device_count(),), split, lambda _index: np.full(1, told_to_stop.came, np.int32)
        )
        state, stopping = train_step(state, *batch, stops)
        # A host that is told to stop learns here, as all others do, that this step is the last one for now.
        if int(stopping):
            checkpoints.save(state)
            print(f"stops after step {step}", flush=True)
            checkpoints.close()
            return 1
        if (step + 1) % options.save_every == 0:
            checkpoints.save(state)
        time.sleep(max(0.0, options.pace - (time.monotonic() - began)))

    result = {
        "step": int(state["step"]),
        "loss": float(state["loss"]),
        "seen": sorted({int(count) for count in np.asarray(state["seen"])}),
    }
    if jax.process_index() == 0:
        (folder / "result.json").write_text(json.dumps(result))
        print("result", json.dumps(result), flush=True)
    checkpoints.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
