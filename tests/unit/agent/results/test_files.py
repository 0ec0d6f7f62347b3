"""Reading what a command left in its results file."""

from pathlib import Path

from bastion.agent.results import files
from bastion.core import limits
from bastion.core.bucket import results
from bastion.core.bucket.results import HostResults

NAME = "the file"


def read(path: Path, data: bytes) -> files.Lines:
    path.write_bytes(data)
    return files.read(path, NAME, files.Lines())


def test_without_a_file_there_is_nothing_to_say(tmp_path: Path):
    assert files.read(tmp_path / "none", NAME, files.Lines()) == files.Lines()


def test_lines_keep_their_numbers_whatever_ends_them(tmp_path: Path):
    found = read(tmp_path / "f", b"a\r\n\nb\n\xff\x00\nlast")
    assert found.kept == ["a", "", "b", "\ufffd\0", "last"]
    assert (found.truncated, found.problems) == (False, [])


def test_a_line_of_ten_megabytes_is_cut_and_the_next_one_is_whole(tmp_path: Path):
    found = read(tmp_path / "f", b"a\n" + b'{"metric"' + b" " * 10_000_000 + b"\nb\n")
    assert [len(line) for line in found.kept] == [1, 203, 1]
    assert found.truncated
    assert found.problems == ["the file: 1 line cut, because they are longer than 16384 bytes"]


def test_a_line_of_the_largest_length_is_whole(tmp_path: Path):
    longest = b"x" * limits.RESULTS_LINE_MAX_BYTES
    assert read(tmp_path / "f", longest + b"\r\n" + longest + b"\n" + longest).kept == [longest.decode()] * 3


def test_a_file_of_one_endless_line_is_not_read_to_its_end(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(limits, "RESULTS_FILE_READ_MAX_BYTES", 100_000)
    found = read(tmp_path / "f", b"x" * 1_000_000)
    assert len(found.kept) == 1
    assert "nothing after 100000 bytes was read" in found.problems[0]


def test_what_is_stored_of_the_worst_characters_can_be_read_again(tmp_path: Path):
    # As JSON a control character takes six times its size.
    found = read(tmp_path / "f", (b"\x01" * 1000 + b"\n") * 9000)
    assert found.truncated
    document = HostResults(attempt=1, try_number=1, lines=found.kept, problems=found.problems)
    data = document.to_bytes()
    assert len(data) <= limits.RESULTS_DOCUMENT_MAX_BYTES
    assert results.read(data) == document


def test_the_largest_number_of_lines_can_be_read_again(tmp_path: Path):
    found = read(tmp_path / "f", b'{"a":[1,2,3]}\n' * (limits.RESULTS_MAX_LINES + 1))
    assert len(found.kept) == limits.RESULTS_MAX_LINES
    document = HostResults(attempt=1, try_number=1, lines=found.kept)
    assert results.read(document.to_bytes()) == document


def test_two_files_share_the_space(tmp_path: Path):
    first = read(tmp_path / "f", b"x\n" * (limits.RESULTS_MAX_LINES - 1))
    (tmp_path / "g").write_bytes(b"y\n" * 3)
    second = files.read(tmp_path / "g", NAME, first.rest())
    assert (first.truncated, second.kept, second.truncated) == (False, ["y"], True)
