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


# What ended a command, and what that usually comes from.
_MEANINGS: Final = {
    1: "the program reported an error; Python exits with 1 after an exception",
    2: "the program, or bash, was called with wrong arguments or bad syntax",
    126: "bash found the command but may not run it: check that it is executable, and not a folder",
    127: "bash did not find a command: check its name, $PATH and the image",
    128 + 2: "SIGINT ended it, as Ctrl-C does; something sent that signal",
    128 + 4: "SIGILL ended it: the binary is built for another processor",
    128
    + 6: "SIGABRT ended it: the program gave up, often a failed assertion in native code or an allocation that failed",
    128 + 7: "SIGBUS ended it: often /dev/shm is too small, or a mapped file was cut short",
    128 + 8: "SIGFPE ended it: often an integer division by zero in native code",
    128 + 9: "SIGKILL ended it: often the kernel, because the host was out of memory; no host has said so here",
    128
    + 11: "SIGSEGV ended it: native code used invalid memory; a library that does not fit its others is a common cause",
    128 + 13: "SIGPIPE ended it: it wrote to a pipe that nobody read any more",
    128 + 15: "SIGTERM ended it: something asked it to end, and it was not this bastion",
    128 + 24: "SIGXCPU ended it: it reached its limit of CPU time (ulimit -t)",
    128 + 25: "SIGXFSZ ended it: a file reached the limit of file sizes (ulimit -f)",
}
# How a host begins what the kernel says of a command that was killed, and how it begins what the kernel only hints at.
OUT_OF_MEMORY: Final = "killed, out of memory"
MAYBE_OUT_OF_MEMORY: Final = "killed, perhaps out of memory"
_SIGKILL: Final = 128 + 9


def meaning(code: int | None) -> str:
    """Return what a failed command's exit code usually means, as a sentence without its end; empty if unknown."""
    return _MEANINGS.get(code, "") if code is not None else ""


def ending_text(code: int | None, told: str) -> str:
    """As `exit_text`, with what the host says of the kernel's kills; `told`: the message of its report."""
    if not told.startswith((OUT_OF_MEMORY, MAYBE_OUT_OF_MEMORY)):
        return exit_text(code)
    told = told.rstrip(".")
    if code == _SIGKILL:
        return f"was {told}"
    return f"{exit_text(code)} after a process was {told}"


def says_memory(message: str) -> bool:
    """Whether the message of an ending says, and does not guess, that memory was short."""
    return OUT_OF_MEMORY in message or MAYBE_OUT_OF_MEMORY in message or "OOMKilled" in message
