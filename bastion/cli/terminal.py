"""Make a job's output safe for the reader's terminal.

A log must not change a colleague's title, clipboard or screen. Colors and styles (SGR sequences) pass; other control
characters are shown as escapes. Files and pipes get the output unchanged.

Invariants, however the output is cut into pieces:

* No C0 byte but TAB, no DEL and no C1 character passes outside of an SGR sequence. CR passes if the caller allows it.
* Text after a piece has the terminal's own colors.
* Text that an SGR sequence would hide (conceal) is shown, and the sequence as an escape.
"""

from __future__ import annotations

import re
from itertools import islice

from bastion.core.plain_text import visible

_RESET = "\x1b[0m"
_SGR_MAX = 64
# What controls a terminal or reorders text. Zero-width characters pass: scripts and emoji need them.
_CONTROL = re.compile(
    rf"\x1b\[[0-9;:]{{0,{_SGR_MAX}}}m|[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
_BEGUN = re.compile(rf"\x1b(?:\[[0-9;:]{{0,{_SGR_MAX}}})?\Z")
# Blink annoys; conceal hides text.
_UNWANTED = {"5", "6", "8"}
# Codes that take a color, and the number of parameters after the color type.
_COLOR_PARAMETERS = {"5": 1, "2": 3}
_CARRIED_MAX = 8


class OutputCleaner:
    """Cleans one worker's stream, piece by piece. `carriage_returns`: let CR pass."""

    def __init__(self, *, carriage_returns: bool = False) -> None:
        self._carriage_returns = carriage_returns
        self._held = ""
        # The styles in force in the present line.
        self._styles: list[str] = []

    def clean(self, data: bytes, *, ends: bool) -> bytes:
        """The bytes for the terminal.

        `data`: text without a newline. `ends`: whether the line ends here; otherwise the next call continues it.
        """
        text = self._held + data.decode("utf-8", "replace")
        self._held = ""
        begun = None if ends else _BEGUN.search(text)
        if begun is not None:
            # The rest of the sequence may be in the next piece.
            text, self._held = text[: begun.start()], begun[0]
        before = "".join(self._styles)
        text = _CONTROL.sub(lambda found: self._pass(found[0]), text)
        if before or self._styles:
            text = f"{before}{text}{_RESET}"
        if ends:
            self._styles.clear()
        return text.encode("utf-8", "replace")

    def _pass(self, found: str) -> str:
        if found == "\r" and self._carriage_returns:
            return found
        if len(found) == 1 or not _is_style(found):
            return visible(found)
        parameters = found[2:-1]
        if parameters.strip("0") == "":
            self._styles.clear()
        else:
            self._styles.append(found)
            del self._styles[:-_CARRIED_MAX]
        return found


def clean_line(data: bytes) -> bytes:
    """A whole line for the terminal."""
    return OutputCleaner().clean(data, ends=True)


def _is_style(sequence: str) -> bool:
    """Whether an SGR sequence neither blinks nor hides; the 8 in `38;5;8` is a color."""
    parameters = iter(sequence[2:-1].split(";"))
    for parameter in parameters:
        code, _, _ = parameter.partition(":")
        code = code.lstrip("0")
        if code in _UNWANTED:
            return False
        if parameter in ("38", "48", "58"):
            kind = next(parameters, "").lstrip("0")
            for _ in islice(parameters, _COLOR_PARAMETERS.get(kind, 0)):
                pass
    return True
