"""What a job's output may do to a terminal: choose colors; and what words from outside may do: nothing."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bastion.cli.terminal import OutputCleaner, clean_line
from bastion.core.plain_text import plain, plain_line

# What must never reach a terminal: controls but TAB, C1 as characters, whatever reorders text.
FORBIDDEN = re.compile("[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
STYLES = re.compile("\x1b\\[[0-9;:]*m")
PARTS = [
    "\x1b",
    "[",
    "]",
    "31",
    "8",
    ";",
    ":",
    "m",
    "?",
    ">",
    "H",
    "\x07",
    "\x9b",
    "\r",
    "\u202e",
    "a",
    "\xe9",
    "\x1b[31m",
]


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("\x1b]52;c;ZWNobyBoaQ==\x07", "\\x1b]52;c;ZWNobyBoaQ==\\x07"),  # the clipboard
        ("\x1b]0;title\x1b\\", "\\x1b]0;title\\x1b\\"),
        ("\x1b[2J\x1b[H", "\\x1b[2J\\x1b[H"),
        ("\x1bc\x1b[6n\x1bP$q\x1b\\", "\\x1bc\\x1b[6n\\x1bP$q\\x1b\\"),
        ("\x9b2J\x9d0;title\x9c", "\\x9b2J\\x9d0;title\\x9c"),
        ("\x1b[>4;2m\x1b[?25l\x1b[ 1m", "\\x1b[>4;2m\\x1b[?25l\\x1b[ 1m"),
        ("safe\rtrue\b\b\x7f", "safe\\rtrue\\x08\\x08\\x7f"),
        ("\u202egnp.exe \u2066x", "\\u202egnp.exe \\u2066x"),
        ("\x1b[8mhidden\x1b[0m", "\\x1b[8mhidden\x1b[0m"),
        ("\x1b[1;08mhidden", "\\x1b[1;08mhidden"),
        ("tab\there \U0001f469\u200d\U0001f4bb", "tab\there \U0001f469\u200d\U0001f4bb"),
    ],
)  # fmt: skip
def test_a_line_shows_what_would_control_the_terminal(output: str, shown: str) -> None:
    assert clean_line(output.encode()).decode() == shown


@pytest.mark.parametrize("color", ["31", "1;38;5;8", "38;2;8;8;8", "48:5:8", "0;4"])
def test_colors_pass_and_end_with_the_line(color: str) -> None:
    assert clean_line(f"a \x1b[{color}mb".encode()).decode() == f"a \x1b[{color}mb\x1b[0m"
    assert clean_line(f"a \x1b[{color}mb\x1b[m c".encode()).decode() == f"a \x1b[{color}mb\x1b[m c"


def test_a_color_goes_on_in_the_next_piece_of_its_line_and_not_in_the_next_line() -> None:
    cleaner = OutputCleaner()
    assert cleaner.clean(b"\x1b[31mred", ends=False) == b"\x1b[31mred\x1b[0m"
    assert cleaner.clean(b"der", ends=True) == b"\x1b[31mder\x1b[0m"
    assert cleaner.clean(b"plain", ends=True) == b"plain"


def test_bytes_that_are_not_utf8_pass_as_the_replacement_character() -> None:
    assert clean_line(b"\x9b2J\xff").decode() == "\ufffd2J\ufffd"


@given(st.lists(st.sampled_from(PARTS), max_size=12).map("".join), st.sets(st.integers(0, 60)), st.booleans())
def test_however_output_is_cut_only_styles_reach_the_terminal(text: str, cuts: set[int], rewrites: bool) -> None:
    cleaner = OutputCleaner(carriage_returns=rewrites)
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[begin:end] for begin, end in itertools.pairwise(places)]
    shown = ""
    for number, piece in enumerate(pieces, start=1):
        shown += cleaner.clean(piece.encode(), ends=number == len(pieces)).decode()
        # A line of ours may come now: it must not be styled by the job.
        styles = STYLES.findall(shown)
        assert not styles or styles[-1].strip("\x1b[0;m") == "", shown
    left = STYLES.sub("", shown)
    assert not FORBIDDEN.search(left.replace("\r", "") if rewrites else left), shown
    assert "\x1b" not in left


@given(st.text())
def test_words_from_outside_are_printable_and_in_one_line(text: str) -> None:
    shown = plain_line(text)
    assert not re.search("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", shown)
    assert plain(shown) == shown
