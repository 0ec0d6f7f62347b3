"""The example of a benchmark."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from bastion.benchmark import file_problems, matrix
from bastion.benchmark.results import parse
from bastion.core.bucket.results import HostResults

FOLDER = Path(__file__).parents[3] / "examples/benchmark"


def test_the_file_is_valid_and_its_programs_know_its_frameworks() -> None:
    benchmark = file_problems.read((FOLDER / "bench.toml").read_bytes())
    found = matrix.cells(benchmark)
    assert len(found) == 17
    for cell in found:
        program = (FOLDER / f"{cell.variables['program']}.py").read_text("utf-8")
        assert f'"{cell.variables["framework"]}": with_' in program


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture
def no_torch() -> Callable[[str], object]:
    def find_spec(name: str) -> object:
        return None if name in ("torch", "tensorflow") else name

    return find_spec


def test_what_is_not_installed_is_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_torch: Callable[[str], object]
) -> None:
    installed = module("installed")
    monkeypatch.setattr(importlib.util, "find_spec", no_torch)
    installed.main()
    text, told = capsys.readouterr()
    assert "leaving out torch, tensorflow" in told
    cells = matrix.cells(file_problems.read(text.encode()))
    assert {cell.variables["framework"] for cell in cells} == {"jax", "numpy"}


def test_a_program_says_which_framework_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_torch: Callable[[str], object]
) -> None:
    measure = module("measure")
    monkeypatch.setattr(importlib.util, "find_spec", no_torch)
    monkeypatch.setattr("sys.argv", ["matmul.py", "--framework=torch"])
    with pytest.raises(SystemExit) as ended:
        measure.main({"torch": lambda: lambda: None}, steps=1)
    assert ended.value.code == 69
    assert capsys.readouterr().err.startswith("torch is not installed in ")


def test_a_program_writes_a_line_for_each_step_and_its_run_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["matmul.py", "--framework=json", "--steps=3"])
    monkeypatch.setenv("BASTION_RESULTS_FILE", str(tmp_path / "results"))
    module("measure").main({"json": lambda: lambda: None}, steps=1)
    host = HostResults(
        attempt=1,
        try_number=1,
        lines=(tmp_path / "results").read_text().splitlines(),
        mllog=capsys.readouterr().out.splitlines(),
    )
    found = parse(host)
    assert found.problems == []
    assert [each.step for each in found.values["step_seconds"]] == [1, 2, 3]
    assert len(found.values["run_seconds"]) == 1
