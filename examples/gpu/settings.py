"""The options of both trainings."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Attributes:
    data: Folder with train.bin and val.bin.
    output_dir: Where the checkpoints and the result go; Bastion stores and restores this folder.
    epochs: How often each sample is seen.
    batch: Samples of a step, over all processes.
    context: Tokens of a sample.
    moe_coef: Weight of the loss that keeps the experts equally busy.
    save_every: Steps between two checkpoints.
    tensorboard: Whether to write curves for TensorBoard.
    """

    data: Path = Path("data")
    output_dir: Path = Path("out")
    epochs: int = 1
    batch: int = 32
    context: int = 64
    width: int = 64
    layers: int = 2
    heads: int = 4
    experts: int = 4
    top_k: int = 2
    moe_coef: float = 0.1
    dropout: float = 0.1
    learning_rate: float = 3e-3
    save_every: int = 50
    seed: int = 1
    tensorboard: bool = False

    @staticmethod
    def from_command_line(arguments: Sequence[str] | None = None) -> Settings:
        """Raises SystemExit: they do not fit each other."""
        parser = argparse.ArgumentParser(description="Train a small mixture-of-experts language model.")
        for field in fields(Settings):
            if isinstance(field.default, bool):
                parser.add_argument(f"--{field.name}", action="store_true")
            else:
                parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
        if "BASTION_OUTPUT_DIR" in os.environ:
            parser.set_defaults(output_dir=Path(os.environ["BASTION_OUTPUT_DIR"]))
        found = Settings(**vars(parser.parse_args(arguments)))
        if found.width % found.heads:
            parser.error("--width must be a multiple of --heads")
        if not 1 <= found.top_k <= found.experts:
            parser.error("--top_k must be between 1 and --experts")
        return found

    def share(self, processes: int) -> int:
        """The samples of a step for each process. Raises SystemExit: they cannot be shared equally."""
        if self.batch % processes:
            raise SystemExit(f"--batch={self.batch} is not a multiple of the number of processes, {processes}")
        return self.batch // processes
