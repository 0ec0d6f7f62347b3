"""Train a mixture-of-experts language model with JAX, on all GPUs of all hosts of a job, or on CPUs.

    python3 moe_jax.py --data=data

As `moe_torch.py`: process 0 saves, and tells the others what it saved; a host that is told to stop (SIGTERM) tells the
others within the next step; what a step draws at random depends on the seed and the step alone.
"""

from __future__ import annotations

from functools import partial
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import jax_model
import numpy as np
from corpus import Corpus
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from progress import Checkpoints, Curves, Journal, StopSignal, tell_step, write_result
from settings import Settings

STOPPED = 1
State = dict[str, Any]


@partial(jax.jit, static_argnames="settings", donate_argnums=0)
def train_step(
    state: State, numbers: Array, windows: Array, stops: Array, *, settings: Settings
) -> tuple[State, dict[str, Array]]:
    """One step of AdamW on a batch of all processes."""

    def goal(weights: jax_model.Weights) -> tuple[Array, tuple[Array, Array]]:
        key = jax.random.fold_in(jax.random.key(settings.seed), state["step"])
        loss, balance = jax_model.loss_of(weights, windows, settings, key)
        return loss + settings.moe_coef * balance, (loss, balance)

    gradients, (loss, balance) = jax.grad(goal, has_aux=True)(state["weights"])
    step = state["step"] + 1
    mean = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, state["mean"], gradients)
    square = jax.tree.map(lambda old, new: 0.999 * old + 0.001 * new**2, state["square"], gradients)

    def moved(weight: Array, mean: Array, square: Array) -> Array:
        move = mean / (1 - 0.9**step) / (jnp.sqrt(square / (1 - 0.999**step)) + 1e-8)
        return weight - settings.learning_rate * (move + 0.01 * weight)

    weights = jax.tree.map(moved, state["weights"], mean, square)
    # What was really seen: the numbers came with the samples.
    facts = {"loss": loss, "balance": balance, "numbers": numbers, "stops": stops.sum()}
    return {"weights": weights, "mean": mean, "square": square, "step": step, "loss": loss}, facts


class Training:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        mesh = Mesh(np.array(jax.devices()), ("data",))
        settings.share(jax.device_count())
        self._split = NamedSharding(mesh, PartitionSpec("data"))
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self.data = Corpus(
            settings.data / "train.bin", context=settings.context, batch=settings.batch, seed=settings.seed
        )
        self.steps = settings.epochs * self.data.steps
        self.checkpoints = Checkpoints(settings.output_dir / "checkpoints")
        self.journal = Journal()
        self.state = jax.tree.map(lambda value: self._put(value, self._everywhere), self._restored())
        self.step = int(self.state["step"])

    def train_step(self, told_to_stop: bool) -> tuple[float, bool]:
        """Train on the next batch; returns the mean balance of the experts, and whether any host was told to stop."""
        numbers = self.data.numbers(self.step)
        batch = [self._put(value, self._split) for value in (numbers.astype(np.int32), self.data.windows(numbers))]
        stops = self._put(np.full(jax.device_count(), told_to_stop, np.int32), self._split)
        self.state, facts = train_step(self.state, *batch, stops, settings=self.settings)
        facts = jax.tree.map(np.asarray, jax.device_put(facts, self._everywhere))
        self.step += 1
        self.journal.add(facts["numbers"].tolist())
        return float(facts["balance"]), bool(facts["stops"])

    def save(self) -> None:
        if jax.process_index() == 0:
            self.checkpoints.save(self.step, self._write)

    def validation_loss(self) -> float:
        """The loss on val.bin, or its first sixteen batches; each process computes all of it."""
        settings = self.settings
        data = Corpus(settings.data / "val.bin", context=settings.context, batch=1)
        numbers = np.arange(min(data.samples, 16 * settings.batch))
        weights = jax.tree.map(np.asarray, self.state["weights"])
        loss_of = jax.jit(jax_model.loss_of, static_argnames="settings")
        parts = np.split(numbers, range(settings.batch, len(numbers), settings.batch))
        losses = [float(loss_of(weights, data.windows(part), settings)[0]) for part in parts]
        return float(np.average(losses, weights=[len(part) for part in parts]))

    def _put(self, value: np.ndarray, sharding: NamedSharding) -> Array:
        value = np.asarray(value)
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    def _write(self, file: BinaryIO) -> None:
        leaves = map(np.asarray, jax.tree.leaves(self.state))
        np.savez(file, *leaves, journal=np.array(self.journal.rows))

    def _restored(self) -> State:
        """What process 0 saved last, on every process; the beginning if it saved nothing."""
        weights = jax_model.initial(self.settings)
        zeros = jax.tree.map(np.zeros_like, weights)
        state = {"weights": weights, "mean": zeros, "square": zeros, "step": np.int32(0), "loss": np.float32(0)}
        newest = self.checkpoints.newest() if jax.process_index() == 0 else None
        if newest is not None:
            with np.load(newest) as saved:
                leaves = [saved[f"arr_{number}"] for number in range(len(jax.tree.leaves(state)))]
                self.journal = Journal(saved["journal"].tolist())
            state = jax.tree.unflatten(jax.tree.structure(state), leaves)
        return multihost_utils.broadcast_one_to_all(state) if jax.process_count() > 1 else state


def main() -> int:
    settings = Settings.from_command_line()
    jax.distributed.initialize()
    training = Training(settings)
    told_to_stop = StopSignal()  # JAX set a handler of its own before
    first = jax.process_index() == 0
    curves = Curves(settings.tensorboard and first, settings.output_dir)
    print(f"process {jax.process_index()} of {jax.process_count()} begins at step {training.step}", flush=True)
    while training.step < training.steps:
        balance, stop = training.train_step(told_to_stop.came)
        last = training.step == training.steps
        loss = float(training.state["loss"])
        if first:
            tell_step(training.step)
            curves.add(training.step, loss=loss, balance=balance)
        if stop or last or training.step % settings.save_every == 0:
            if first:
                print(f"step {training.step}: loss {loss:.6f}, balance {balance:.4f}", flush=True)
            curves.flush()
            training.save()
        if stop and not last:
            print(f"stops after step {training.step}", flush=True)
            return STOPPED
    loss = training.validation_loss()
    if first:
        write_result(settings.output_dir, training.journal, loss=float(training.state["loss"]), validation_loss=loss)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
