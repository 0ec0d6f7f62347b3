"""The tap that keeps MLLOG lines."""

from pathlib import Path

import pytest

from bastion.agent.logs.lines import LogRecord
from bastion.agent.results.mllog_tap import MllogTap
from bastion.core import limits

EVENT = b':::MLLOG {"key": "x"}\n'


def kept(path: Path, *records: tuple[str, bytes]) -> bytes:
    tap = MllogTap(path)
    for stream, data in records:
        tap.look(LogRecord(stream=stream, at=0.0, data=data))
    tap.close()
    return path.read_bytes() if path.exists() else b""


def test_only_mllog_lines_are_kept_from_their_token_on(tmp_path: Path):
    output = b"a\n" + EVENT + b"[rank3]: " + EVENT + b"b :::MLLO\n" + b"x :::MLLOG y " + EVENT
    assert kept(tmp_path / "mllog", ("stdout", output)) == EVENT * 3


def test_output_without_any_makes_no_file(tmp_path: Path):
    assert kept(tmp_path / "mllog", ("stdout", b"a\n" * 100), ("stderr", b"::MLLOG\n")) == b""
    assert not (tmp_path / "mllog").exists()


@pytest.mark.parametrize("cut", range(1, len(EVENT)))
def test_a_line_that_comes_in_two_pieces_is_kept_whole_beside_the_other_stream(tmp_path: Path, cut: int):
    records = [("stdout", b"a\n" + EVENT[:cut]), ("stderr", b"b\n"), ("stdout", EVENT[cut:] + b"c\n")]
    assert kept(tmp_path / "mllog", *records) == EVENT


def test_the_last_line_may_lack_its_end(tmp_path: Path):
    assert kept(tmp_path / "mllog", ("stdout", EVENT[:-1])) == EVENT


def test_a_line_without_end_takes_little_memory_and_spoils_no_other(tmp_path: Path):
    endless = [("stdout", b"x" * 100_000)] * 50
    tap = MllogTap(tmp_path / "mllog")
    for stream, data in endless:
        tap.look(LogRecord(stream=stream, at=0.0, data=data))
    assert sum(map(len, tap._begun.values())) <= limits.RESULTS_LINE_MAX_BYTES
    tap.look(LogRecord(stream="stdout", at=0.0, data=b"\n" + EVENT))
    tap.close()
    assert (tmp_path / "mllog").read_bytes() == EVENT


def test_a_flood_of_them_fills_no_disk(tmp_path: Path):
    assert len(kept(tmp_path / "mllog", *[("stdout", EVENT * 3000)] * 100)) < 2 * limits.RESULTS_MAX_BYTES


def test_a_pipe_in_the_place_of_the_file_costs_the_lines_and_nothing_else(tmp_path: Path):
    (tmp_path / "mllog").mkdir()
    tap = MllogTap(tmp_path / "mllog")
    for _ in range(3):
        tap.look(LogRecord(stream="stdout", at=0.0, data=EVENT))
    tap.close()
