"""Write `train.bin` and `val.bin`: one byte a token, from text files, or made up where none are given.

python3 make_data.py data book.txt
gcloud storage cp data/*.bin gs://BUCKET/tokens/
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

_WORDS = ("a", "any", "every", "one", "the"), ("big", "idle", "new", "small"), ("gang", "host", "job", "queue", "slice")
_VERBS = "borrows", "ends", "lends", "starts", "waits"


def made_up(size: int, seed: int) -> bytes:
    """Sentences of a few words, for a model to learn."""
    draw = random.Random(seed)
    sentences, length = [], 0
    while length < size:
        article, kind, noun = (draw.choice(words) for words in _WORDS)
        sentences.append(f"{article} {kind} {noun} {draw.choice(_VERBS)}. ".encode())
        length += len(sentences[-1])
    return b"".join(sentences)[:size]


def main() -> None:
    parser = argparse.ArgumentParser(description="Write train.bin and val.bin.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("texts", type=Path, nargs="*")
    parser.add_argument("--bytes", type=int, default=2**20, help="how much to make up, if no texts are given")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    text = b"".join(file.read_bytes() for file in options.texts) or made_up(options.bytes, options.seed)
    options.folder.mkdir(parents=True, exist_ok=True)
    cut = len(text) - len(text) // 10
    (options.folder / "train.bin").write_bytes(text[:cut])
    (options.folder / "val.bin").write_bytes(text[cut:])


if __name__ == "__main__":
    main()
