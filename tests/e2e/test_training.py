"""The training example, taken off its hosts three times: by the cloud with notice, by a crash, and by the scheduler."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bastion.core.bucket import keys
from bastion.emulators.tpu.faults import Faults
from bastion.ports import ObjectStore
from tests.support.extras import needs
from tests.support.job_specs import new_spec
from tests.support.local_root import USER, LocalRoot
from tests.support.training_job import Training
from tests.support.waiting import until

needs("jax", "orbax.checkpoint")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

STEPS = 120


# All of the pool is the owner's; the training borrows it.
QUOTA = f"""
[toml-schema]
version = "1"
[total_resources]
v4 = 16
[project_membership]
default = ["{USER}"]
owner = ["{USER}"]
[project_rules]
keep_idle_seconds = 0.0
[project_resources.owner]
v4 = 1.0
"""


def set_quota(store: ObjectStore, text: str) -> None:
    meta = store.head(keys.PROJECT_QUOTAS)
    store.put(keys.PROJECT_QUOTAS, text.encode(), generation=meta.generation if meta else 0)


def owner_needs_it(store: ObjectStore) -> None:
    spec = new_spec(
        "owner", bastion="e2e-bastion", user_id=USER, project_id="owner", now=time.time(), instance_type="tpu-v4-16"
    )
    store.put(keys.active("owner"), spec.to_bytes(), generation=0)


def test_a_training_that_is_pre_empted_three_times_ends_like_one_that_never_was(
    new_root: Callable[[str], LocalRoot],
) -> None:
    root = new_root("training")
    set_quota(root.store, QUOTA)
    faults = Faults(root.home.emulator_dir / "faults")
    root.start_daemon()
    undisturbed = Training(root, "undisturbed", steps=STEPS)
    until(undisturbed.result, 200)
    training = Training(root, "train", steps=STEPS, slow_attempts=3)

    runs = [training.stored_more_in(1)]
    faults.preempt(keys.gang(runs[0]))
    runs.append(training.stored_more_in(2))
    faults.crash(keys.gang(runs[1]), worker=1)
    runs.append(training.stored_more_in(3))
    owner_needs_it(root.store)
    until(training.result, 200)

    causes = training.same_as(undisturbed)
    assert causes == ["infrastructure", "infrastructure", "evicted", "succeeded"]


SHARED = """
import os
import jax, jax.numpy as jnp, numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec

sharding = NamedSharding(jax.make_mesh((jax.device_count(),), ("x",)), PartitionSpec("x"))
values = np.arange(64, dtype=np.float32)
state = {"weights": jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])}
folder = epath.Path(os.environ["BASTION_OUTPUT_URL"]) / "checkpoints"
with ocp.CheckpointManager(folder) as manager:
    if manager.latest_step() is None:
        manager.save(1, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
        raise SystemExit(1)
    empty = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    found = manager.restore(1, args=ocp.args.StandardRestore(empty))["weights"]
    assert len(found.addressable_shards) == jax.local_device_count()
    for shard in found.addressable_shards:
        assert (np.asarray(shard.data) == values[shard.index]).all()
print("all shards are back")
"""


def test_hosts_that_write_one_checkpoint_together_find_it_under_the_output_url(
    new_root: Callable[[str], LocalRoot], tmp_path: Path
) -> None:
    root = new_root("shared")
    root.start_daemon()
    program = tmp_path / "shared.py"
    program.write_text(SHARED)
    spec = new_spec(
        "shared",
        bastion="e2e-bastion",
        command=f"python3 {program}",
        user_id=USER,
        project_id="default",
        now=time.time(),
        instance_type="tpu-v4-16",
        max_tries=2,
    )
    root.store.put(keys.active("shared"), spec.to_bytes(), generation=0)
    until(lambda: root.store.head(keys.complete("shared")), 300)
    result = json.loads(root.store.get(keys.complete("shared")).data)["result"]
    segments = [meta.key for meta in root.store.list(keys.worker_logs("shared"))]
    text = "".join(root.store.get(key).data.decode() for key in segments)
    assert result["outcome"] == "succeeded", text
    assert text.count("all shards are back") == 2
