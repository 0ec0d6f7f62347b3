"""The training example as a job, and what must be true of it after whatever happened to it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bastion.core.bucket import keys, outputs
from bastion.core.errors import NotFound
from tests.support.local_root import LocalRoot, RootJob
from tests.support.waiting import until

_EXAMPLE = Path(__file__).parents[2] / "examples" / "train" / "train.py"


class Training(RootJob):
    """A job that runs the example on the two hosts of a slice."""

    def __init__(
        self,
        root: LocalRoot,
        name: str,
        *,
        steps: int,
        slow_attempts: int = 0,
        save_every: int = 10,
        instance_type: str = "tpu-v4-16",
    ) -> None:
        """`slow_attempts`: so many are slow and save often, so that each can be ended before it is through."""
        self.steps = steps
        command = (
            f'if [ "$BASTION_ATTEMPT" -le {slow_attempts} ]; then set -- --save_every=2 --pace=0.3; '
            f'else set -- --save_every={save_every}; fi; exec python3 {_EXAMPLE} --steps={steps} "$@"'
        )
        super().__init__(root, name, command, instance_type=instance_type, output_dir="out", output_sync="worker0")

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

    def trained(self) -> dict[str, Any]:
        """What it says of itself in the end."""
        manifest = self.manifests()[-1]
        found: dict[str, Any] = json.loads(self.content(manifest, "result.json"))
        return found

    def content(self, manifest: outputs.Manifest, path: str) -> bytes:
        run = keys.Run.parse(manifest.run)
        assert run is not None
        folder = keys.outputs(self.name, run.uid, 0)
        return b"".join(self.store.get(folder + part.object).data for part in manifest.files[path].parts)

    def began_at(self, run: str) -> int | None:
        """The step at which a run began."""
        return next((int(line.split()[3]) for line in self.output(run) if line.startswith("begins at step")), None)

    def stored_more_in(self, number: int) -> str:
        """Wait until the run of that number has stored checkpoints of its own; return its name."""
        until(lambda: len(self.runs()) == number and self.began_at(self.runs()[-1]) is not None, 200)
        run = self.runs()[-1]
        until(lambda: [m for m in self.manifests() if m.run == run and checkpoints_in(m)], 200)
        return run

    def same_as(self, undisturbed: Training) -> list[str]:
        """Check that it ended like one to which nothing happened; return the causes of its attempts' ends."""
        result, expected = self.result(), undisturbed.result()
        assert result is not None
        assert expected is not None
        assert (result["outcome"], expected["outcome"]) == ("succeeded", "succeeded"), result
        trained, reference = self.trained(), undisturbed.trained()
        assert trained["step"] == reference["step"] == self.steps
        assert trained["loss"] == pytest.approx(reference["loss"], rel=1e-4)
        assert trained["seen"] == reference["seen"] == [1], "some sample was skipped, or seen twice"
        begins = [self.began_at(run) for run in self.runs()]
        assert begins[0] == 0
        assert begins == sorted(step for step in begins if step is not None)
        assert 0 not in begins[1:], begins
        for run in self.runs():
            assert self.began_at(run) == next(
                int(line.split()[3]) for line in self.output(run, 1) if line.startswith("begins at step")
            ), "the hosts began with different checkpoints"
        return [attempt["cause"] for attempt in result["attempts"]]


def checkpoints_in(manifest: outputs.Manifest) -> list[int]:
    return sorted(int(path.split("/")[1]) for path in manifest.folders if re.fullmatch(r"checkpoints/\d+", path))
