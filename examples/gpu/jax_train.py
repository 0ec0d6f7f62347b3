"""JAX on all GPUs of all hosts of a job, or on CPUs where there are none.

    bastion launch --instance_type=gpu-h100-8 --num_replicas=2 --image=IMAGE -- python3 examples/gpu/jax_train.py

`jax.distributed.initialize()` finds the hosts by itself.
"""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

STEPS = 20

jax.distributed.initialize()
mesh = Mesh(jax.devices(), ("data",))
rows = 8 * jax.device_count()
by_row = NamedSharding(mesh, PartitionSpec("data"))
goal = jnp.arange(8.0) / 8


def loss_of(weights: jax.Array, inputs: jax.Array) -> jax.Array:
    return jnp.mean((inputs @ weights - inputs @ goal) ** 2)


@jax.jit
def train_step(weights: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    inputs = jax.lax.with_sharding_constraint(jax.random.normal(key, (rows, 8)), by_row)
    loss, gradient = jax.value_and_grad(loss_of)(weights, inputs)
    return weights - 0.1 * gradient, loss


weights = jax.device_put(jnp.zeros(8), NamedSharding(mesh, PartitionSpec()))
for step in range(1, STEPS + 1):
    weights, loss = train_step(weights, jax.random.key(step))
    if step % 10 == 0:
        print(f"step {step}: loss {loss.item():.6f}", flush=True)
print(f"process {jax.process_index()} of {jax.process_count()}: {jax.device_count()} devices", flush=True)
