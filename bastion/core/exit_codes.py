"""Exit codes of commands as text."""

from __future__ import annotations

from typing import Final

_SIGNAL_BASE: Final = 128
# Signals of Linux that end commands; the hosts run Linux, this program may not.
_SIGNALS: Final = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    13: "SIGPIPE",
    14: "SIGALRM",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
}
_HINTS: Final = {"SIGKILL": " (often: out of memory)"}


def exit_text(code: int | None) -> str:
    """Return `exited with code 3` or `was killed by SIGKILL (often: out of memory)`.

    `code` is 128 + n for signal n; None if unknown.
    """
    if code is None:
        return "exited with an unknown code"
    signal = _SIGNALS.get(code - _SIGNAL_BASE)
    return f"was killed by {signal}{_HINTS.get(signal, '')}" if signal else f"exited with code {code}"
