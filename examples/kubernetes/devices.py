"""Print how many devices a job has, and the sum of one number from each of them."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

sharding = NamedSharding(Mesh(jax.devices(), ("all",)), PartitionSpec("all"))
ones = jax.jit(lambda: jnp.ones(jax.device_count()), out_shardings=sharding)()
print(f"process {jax.process_index()} of {jax.process_count()}", flush=True)
print(
    f"{jax.local_device_count()} local devices, {jax.device_count()} in the job, sum {ones.sum().item():.0f}",
    flush=True,
)
