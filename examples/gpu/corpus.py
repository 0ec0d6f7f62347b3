"""The samples of a file of tokens, one byte each, in an order that only the seed and the step's number decide.

Sample n is the window of `context` tokens that begins at n * context, and the token after it. An epoch sees each sample
once, in an order of its own; what does not fill a batch is left out.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

VOCABULARY = 256


class Corpus:
    """Attributes:
    samples: How many there are.
    steps: How many batches an epoch has.
    """

    def __init__(self, file: Path, *, context: int, batch: int, seed: int = 0) -> None:
        """Raises SystemExit: the file is missing, or has no whole batch."""
        if not file.is_file():
            raise SystemExit(f"{file} does not exist; create it with make_data.py, or fetch it with --input=URL:data")
        tokens = np.memmap(file, np.uint8, "r") if file.stat().st_size else np.zeros(0, np.uint8)
        self.samples = max(0, (len(tokens) - 1) // context)
        self.steps = self.samples // batch
        if not self.steps:
            raise SystemExit(f"{file} has {self.samples} samples of {context} tokens; a batch needs {batch}")
        self._tokens, self._context, self._batch, self._seed = tokens, context, batch, seed
        self._epoch, self._order = -1, np.zeros(0, np.int64)

    def numbers(self, step: int) -> np.ndarray:
        """The numbers of a step's samples, over all processes; steps count from 0, through all epochs."""
        epoch, place = divmod(step, self.steps)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self._seed, epoch]).permutation(self.samples)
        return self._order[place * self._batch : (place + 1) * self._batch]

    def windows(self, numbers: np.ndarray) -> np.ndarray:
        """Their tokens, a row of context + 1 for each."""
        places = np.asarray(numbers)[:, None] * self._context + np.arange(self._context + 1)
        return self._tokens[places].astype(np.int32)
