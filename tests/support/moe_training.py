"""The trainings of `examples/gpu`, small, and what must be true of what they leave."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "gpu"
DISTURBED = Path(__file__).with_name("disturbed_training.py")
BATCH, CONTEXT, SAVE_EVERY, STEPS = 4, 16, 5, 30
# To compile the JAX training with all optimizations takes ten times as long as to run it.
QUICK_XLA = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
_TRAIN_BYTES = STEPS * BATCH * CONTEXT + 1
_MODEL = "--width=16 --layers=1 --heads=2 --experts=4 --top_k=2"
SIZES = f"--batch={BATCH} --context={CONTEXT} --save_every={SAVE_EVERY} {_MODEL}".split()


def make_data(folder: Path) -> Path:
    """Data of STEPS steps."""
    size = -(-_TRAIN_BYTES * 10 // 9)
    script = str(EXAMPLES / "make_data.py")
    subprocess.run([sys.executable, script, str(folder), f"--bytes={size}"], check=True, timeout=60)
    (folder / "train.bin").write_bytes((folder / "train.bin").read_bytes()[:_TRAIN_BYTES])
    return folder


def check_same(trained: Mapping[str, bytes], undisturbed: Mapping[str, bytes]) -> None:
    """Both are files of an output folder, by name: the losses are the same, and each saw every sample once."""
    results: list[dict[str, Any]] = [json.loads(files["result.json"]) for files in (trained, undisturbed)]
    assert results[0] == pytest.approx(results[1], rel=1e-4)
    assert results[0]["steps"] == STEPS
    for files in (trained, undisturbed):
        journal = [json.loads(line) for line in files["journal.jsonl"].splitlines()]
        assert [line["step"] for line in journal] == list(range(STEPS))
        assert sorted(sample for line in journal for sample in line["samples"]) == list(range(STEPS * BATCH))
