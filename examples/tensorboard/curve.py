"""Writes a falling curve to TensorBoard, saves every twenty steps, and goes on where it was after a preemption.

    bastion launch --instance_type=tpu-v4-8 --tensorboard -- python3 examples/tensorboard/curve.py --steps=200

Needs `pip install tensorboard`.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from tensorboard.summary import Writer

SAVE_EVERY = 20


def put(path: Path, text: str) -> None:
    """Replace the file atomically: a reader sees the old number or the new one."""
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.replace(path)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--pace", type=float, default=0.1, help="seconds a step")
    options.add_argument("--rate", type=float, default=0.98, help="how fast the curve falls")
    values = options.parse_args()
    saved = Path(os.environ["BASTION_OUTPUT_DIR"]) / "step"
    begin = int(saved.read_text()) if saved.exists() else 0
    board = Writer(os.environ["BASTION_TENSORBOARD_DIR"])
    print(f"begins at step {begin}")
    for step in range(begin, values.steps):
        board.add_scalar("loss", 2 * values.rate**step, step)
        put(Path(os.environ["BASTION_STEP_FILE"]), str(step))
        if (step + 1) % SAVE_EVERY == 0:
            board.flush()
            put(saved, str(step + 1))
            Path(os.environ["BASTION_CHECKPOINT_FILE"]).touch()
        time.sleep(values.pace)
    board.close()


if __name__ == "__main__":
    main()
