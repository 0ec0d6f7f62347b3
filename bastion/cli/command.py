"""The convention that every command of `bastion` follows.

Layer: cli. A command is a `Command` value in a module of its own; `bastion.cli.registry` lists it by path, so that
the module (and what it imports) is loaded only when the command is used. The text of a command's help and the CLI
reference are made of this value and of its flags.

    # bastion/cli/fetch.py
    def _define(values: flags.FlagValues) -> None:
        flags.DEFINE_integer("tries", 3, "How often to try.", lower_bound=1, flag_values=values)

    def _run(call: Invocation) -> int:
        target = resolve(call.flags)            # bastion.cli.target: which bastion
        print(call.operands[0], call.flags.tries, target.root.url)
        return 0

    FETCH = Command(summary="Fetches a thing.", usage="THING [--tries=N]", examples=("bastion fetch thing",),
                    operands=(1, 1), define=_define, run=_run)

    # bastion/cli/registry.py
    Entry("fetch", "bastion.cli.fetch:FETCH", "fetches a thing")

Rules:

* Flags are absl flags in a private `FlagValues` that exists for one invocation; the global `FLAGS` is never touched.
* `run` returns the exit code. Bad input is a `BastionError` (usually `Refused`, exit code 64) or a `QuotaFileError`:
  `main` prints it as one line `bastion: ...` on stderr. No command prints a traceback, or calls `sys.exit`.
* stdout is for what was asked; progress and notes go to stderr (`bastion.cli.output.say`). With `takes_output`, the
  flag `--output=json` exists, and then stdout holds JSON and nothing else.
* Modules of commands import no heavy library at their top: `bastion list` loads neither google, grpc, jax nor the
  emulator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from absl import flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One use of a command, parsed.

    Attributes:
        name: The command's words, like `local up`.
        flags: Its flags; `call.flags.instance_type` is the value of `--instance_type`.
        operands: What is neither a flag nor a flag's value.
        command: What follows the first `--`, exactly as it came; None if there was no `--`. Only commands with
            `takes_command` get it; of others it is part of the operands.
    """

    name: str
    flags: flags.FlagValues
    operands: tuple[str, ...]
    command: tuple[str, ...] | None = None

    @property
    def json(self) -> bool:
        """Whether `--output=json` was given."""
        return "output" in self.flags and bool(self.flags.output == "json")


def no_flags(_: flags.FlagValues) -> None:
    """The `define` of a command without flags of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What there is to know of one command.

    Attributes:
        summary: One sentence.
        usage: What follows the command's name in its usage line.
        details: Paragraphs for the help and the reference; empty lines between them.
        examples: Whole command lines.
        run: Does it; returns the exit code.
        define: Adds the command's own flags.
        operands: The least and the most operands it takes; None: any number.
        takes_command: Whether a command line may follow `--`.
        takes_target: Whether it has `--root`, `--bastion` and `--bucket`.
        takes_output: Whether it has `--output=text|json`.
    """

    summary: str
    usage: str
    run: Callable[[Invocation], int]
    define: Callable[[flags.FlagValues], None] = no_flags
    details: str = ""
    examples: tuple[str, ...] = ()
    operands: tuple[int, int | None] = (0, 0)
    takes_command: bool = False
    takes_target: bool = True
    takes_output: bool = False

    def values(self) -> flags.FlagValues:
        """A fresh set of this command's flags, with their defaults."""
        values = flags.FlagValues()  # type: ignore[no-untyped-call]
        self.define(values)
        if self.takes_target:
            flags.DEFINE_string(
                "root",
                None,
                "The bastion's folder: gs://BUCKET/NAME-bastion or a local folder. Instead of --bastion and --bucket.",
                flag_values=values,
            )
            flags.DEFINE_string(
                "bastion", None, "The bastion's name; it ends in -bastion. Needs --bucket.", flag_values=values
            )
            flags.DEFINE_string(
                "bucket", None, "The bastion's bucket: gs://BUCKET or a local folder.", flag_values=values
            )
        if self.takes_output:
            flags.DEFINE_enum("output", "text", ["text", "json"], "Form of the data on stdout.", flag_values=values)
        return values
