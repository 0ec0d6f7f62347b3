"""What the trainings of `examples/gpu` share: options, the order of samples, checkpoints."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.moe_training import EXAMPLES

NAMES = ("corpus", "make_data", "progress", "settings")


@pytest.fixture(scope="module")
def recipe() -> Iterator[Any]:
    """The modules, which find each other in their own folder."""
    pytest.importorskip("numpy")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in NAMES})
    for name in NAMES:
        del sys.modules[name]


def tokens(folder: Path, size: int) -> Path:
    file = folder / "train.bin"
    file.write_bytes(bytes(number % 256 for number in range(size)))
    return file


def test_an_epoch_has_every_sample_once_and_each_has_another_order(recipe: Any, tmp_path: Path) -> None:
    data = recipe.corpus.Corpus(tokens(tmp_path, 10 * 6 + 1), context=6, batch=3, seed=2)
    assert (data.samples, data.steps) == (10, 3)
    epochs = [[int(n) for step in range(3) for n in data.numbers(3 * epoch + step)] for epoch in (0, 1)]
    assert all(len(set(epoch)) == 9 for epoch in epochs)
    assert epochs[0] != epochs[1]
    again = recipe.corpus.Corpus(tmp_path / "train.bin", context=6, batch=3, seed=2)
    assert again.numbers(4).tolist() == epochs[1][3:6]  # wherever one begins


def test_a_sample_is_its_window_and_the_token_after_it(recipe: Any, tmp_path: Path) -> None:
    data = recipe.corpus.Corpus(tokens(tmp_path, 13), context=6, batch=1)
    assert data.windows([1, 0]).tolist() == [[6, 7, 8, 9, 10, 11, 12], [0, 1, 2, 3, 4, 5, 6]]


@pytest.mark.parametrize("size", [0, 1, 18])
def test_a_file_without_a_whole_batch_is_refused(recipe: Any, tmp_path: Path, size: int) -> None:
    with pytest.raises(SystemExit, match=r"train.bin has [02] samples of 6 tokens; a batch needs 3"):
        recipe.corpus.Corpus(tokens(tmp_path, size), context=6, batch=3)


def test_a_missing_file_is_refused_with_two_ways_to_get_it(recipe: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"train.bin does not exist; create it with make_data.py, or .* --input=URL"):
        recipe.corpus.Corpus(tmp_path / "train.bin", context=6, batch=3)


def test_made_up_data_are_the_same_every_time(recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        monkeypatch.setattr(sys, "argv", ["make_data.py", str(tmp_path / name), "--bytes=1000"])
        recipe.make_data.main()
    assert [(tmp_path / "a" / name).stat().st_size for name in ("train.bin", "val.bin")] == [900, 100]
    assert (tmp_path / "a" / "train.bin").read_bytes() == (tmp_path / "b" / "train.bin").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--heads=3"], "--width must be a multiple of --heads"),
        (["--top_k=5"], "--top_k must be between 1 and --experts"),
        (["--top_k=0"], "--top_k must be between 1 and --experts"),
        (["--batch=many"], "invalid int value"),
    ],
)
def test_wrong_options_are_told(
    recipe: Any, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        recipe.settings.Settings.from_command_line(arguments)
    assert words in capsys.readouterr().err


def test_a_batch_that_processes_cannot_share_is_refused(recipe: Any) -> None:
    settings = recipe.settings.Settings.from_command_line(["--batch=6"])
    assert settings.share(3) == 2
    with pytest.raises(SystemExit, match="--batch=6 is not a multiple of the number of processes, 4"):
        settings.share(4)


def test_outputs_go_where_bastion_stores_them(recipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BASTION_OUTPUT_DIR", raising=False)
    assert recipe.settings.Settings.from_command_line([]).output_dir == Path("out")
    monkeypatch.setenv("BASTION_OUTPUT_DIR", "/job/out")
    assert recipe.settings.Settings.from_command_line([]).output_dir == Path("/job/out")
    assert recipe.settings.Settings.from_command_line(["--output_dir=x"]).output_dir == Path("x")


def test_the_last_two_checkpoints_are_kept_and_half_a_one_is_none(
    recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched = tmp_path / "touched"
    monkeypatch.setenv("BASTION_CHECKPOINT_FILE", str(touched))
    checkpoints = recipe.progress.Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.newest() is None

    def fail(file: Any) -> None:
        file.write(b"half")
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        checkpoints.save(1, fail)
    assert checkpoints.newest() is None
    assert not touched.exists()
    for step in (9, 10, 100):
        checkpoints.save(step, lambda file, step=step: file.write(b"%d" % step))
    assert touched.exists()
    assert checkpoints.newest().read_bytes() == b"100"
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000010", "step-00000100"]


def test_the_result_has_a_line_for_each_step(recipe: Any, tmp_path: Path) -> None:
    journal = recipe.progress.Journal([[3, 1]])
    journal.add([0, 2])
    recipe.progress.write_result(tmp_path, journal, loss=1.5)
    assert json.loads((tmp_path / "result.json").read_text()) == {"steps": 2, "loss": 1.5}
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert lines == [{"step": 0, "samples": [3, 1]}, {"step": 1, "samples": [0, 2]}]
