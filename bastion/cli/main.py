"""`bastion`, the entry point: meets Ctrl-C from here on, also while the program is still being imported."""

from __future__ import annotations

import sys

_EXIT_INTERRUPTED = 130  # `errors.EXIT_DETACHED`; an import could be interrupted again


def main(argv: list[str] | None = None) -> int:
    """Run one command line, by default the process's own; return the exit code."""
    interrupted = False

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    try:
        import signal

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupt)
        from bastion.cli.program import run

        return run(sys.argv[1:] if argv is None else argv)
    except BaseException as error:
        # While it builds a schema, pydantic makes a SchemaError of a KeyboardInterrupt. Any other error is a fault.
        of_pydantic = interrupted and type(error).__name__ == "SchemaError"
        if not of_pydantic and not isinstance(error, KeyboardInterrupt):
            raise
        if sys.stderr is not None:
            print("bastion: interrupted", file=sys.stderr)
        return _EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
