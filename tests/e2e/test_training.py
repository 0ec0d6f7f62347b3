"""The training example, taken off its hosts three times: by the cloud with notice, by a crash, and by the scheduler."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bastion.core.bucket import keys, outputs
from bastion.core.errors import NotFound
from bastion.emulators.tpu.faults import Faults
from bastion.ports import ObjectStore
from tests.support.job_specs import new_spec
from tests.support.local_root import USER, LocalRoot, RootJob
from tests.support.waiting import until

pytest.importorskip("jax")
pytest.importorskip("orbax.checkpoint")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "train" / "train.py"
STEPS = 120


class Training(RootJob):
    """A job that runs the example on the two hosts of a slice."""

    def __init__(self, root: LocalRoot, name: str, *, slow_attempts: int = 0) -> None:
        """`slow_attempts`: so many are slow and save often, so that each can be ended before it is through."""
        command = (
            f'if [ "$BASTION_ATTEMPT" -le {slow_attempts} ]; then set -- --save_every=2 --pace=0.3; '
            f'else set -- --save_every=10; fi; exec python3 {EXAMPLE} --steps={STEPS} "$@"'
        )
        super().__init__(root, name, command, instance_type="tpu-v4-16", output_dir="out", output_sync="worker0")

    def stored_steps(self) -> list[int]:
        """Checkpoints of the newest manifest of host 0."""
        manifests = self.manifests()
        return checkpoints_in(manifests[-1]) if manifests else []

    def manifests(self) -> list[outputs.Manifest]:
        found = []
        for meta in self.store.list(f"outputs/{self.name}/"):
            if re.search(r"/worker-0/manifest-\d+$", meta.key):
                try:
                    found.append(outputs.read(self.store.get(meta.key).data))
                except NotFound:  # superseded meanwhile
                    continue
        return found

    def trained(self) -> dict:  # type: ignore[type-arg]
        """What it says of itself in the end."""
        manifest = self.manifests()[-1]
        return json.loads(self.content(manifest, "result.json"))

    def content(self, manifest: outputs.Manifest, path: str) -> bytes:
        run = keys.Run.parse(manifest.run)
        assert run is not None
        folder = keys.outputs(self.name, run.uid, 0)
        return b"".join(self.store.get(folder + part.object).data for part in manifest.files[path].parts)

    def began_at(self, run: str) -> int | None:
        """The step at which a run began."""
        return next((int(line.split()[3]) for line in self.output(run) if line.startswith("begins at step")), None)


def checkpoints_in(manifest: outputs.Manifest) -> list[int]:
    return sorted(int(path.split("/")[1]) for path in manifest.folders if re.fullmatch(r"checkpoints/\d+", path))


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
    undisturbed = Training(root, "undisturbed")
    until(undisturbed.result, 200)
    training = Training(root, "train", slow_attempts=3)

    def stored_more_in(number: int) -> str:
        """Waits until that run has stored checkpoints of its own."""
        until(lambda: len(training.runs()) == number and training.began_at(training.runs()[-1]) is not None, 200)
        run = training.runs()[-1]
        until(lambda: [m for m in training.manifests() if m.run == run and checkpoints_in(m)], 200)
        return run

    runs = [stored_more_in(1)]
    faults.preempt(keys.gang(runs[0]))
    runs.append(stored_more_in(2))
    faults.crash(keys.gang(runs[1]), worker=1)
    runs.append(stored_more_in(3))
    owner_needs_it(root.store)
    until(training.result, 200)

    result, expected = training.result(), undisturbed.result()
    assert result is not None
    assert expected is not None
    assert (result["outcome"], expected["outcome"]) == ("succeeded", "succeeded")
    causes = [attempt["cause"] for attempt in result["attempts"]]
    assert causes == ["infrastructure", "infrastructure", "evicted", "succeeded"]
    trained, reference = training.trained(), undisturbed.trained()
    assert trained["step"] == reference["step"] == STEPS
    assert trained["loss"] == pytest.approx(reference["loss"], rel=1e-4)
    assert trained["seen"] == reference["seen"] == [1], "some sample was skipped, or seen twice"
    begins = [training.began_at(run) for run in training.runs()]
    assert begins[0] == 0
    assert begins == sorted(begins)
    assert all(step > 0 for step in begins[1:]), begins
    for run in training.runs():
        assert training.began_at(run) == next(
            int(line.split()[3]) for line in training.output(run, 1) if line.startswith("begins at step")
        ), "the hosts began with different checkpoints"


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
