"""How every command of `bastion` is written.

A command is a `Command` value in its own module. `bastion.cli.registry` lists it by path, so the module loads only when
the command runs. The command's help and the CLI reference are generated from this value and its flags.

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

* Flags are absl flags in a private `FlagValues` for one invocation; the global `FLAGS` is never used.
* `run` returns the exit code. Bad input raises a `BastionError` (usually `Refused`, exit code 64) or a
  `QuotaFileError`; `main` prints one line `bastion: ...` on stderr. No command prints a traceback or calls `sys.exit`.
* Data goes to stdout; progress and notes go to stderr (`bastion.cli.output.say`). `takes_output` adds the flag
  `--output=json`; with it, stdout holds JSON and nothing else.
* Command modules import no heavy library at the top: `bastion list` loads neither google, grpc, jax nor the emulator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from absl import flags

OUTPUTS = ("table", "wide", "json", "csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One parsed command line.

    Attributes:
        name: The command's name, like `local up`.
        flags: `call.flags.instance_type` is the value of `--instance_type`.
        operands: The arguments that are neither flags nor their values.
        command: The arguments after the first `--`, unchanged; None without `--`, or if the command takes none.
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
    """The `define` of a command without flags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command.

    Attributes:
        usage: The usage line after the command's name.
        details: Paragraphs for the help and the reference, separated by empty lines.
        examples: Whole command lines.
        run: Runs the command; returns the exit code.
        define: Defines the command's own flags.
        operands: Minimum and maximum number of operands; None: no maximum.
        completes: What the shell completes operands with: `jobs`, or `live` ones only.
        takes_command: Whether a command line may follow `--`.
        takes_target: Adds `--root`, `--bastion` and `--bucket`.
        takes_output: Adds `--output=text|json`.
        takes_rows: Adds `--output=table|wide|json|csv` (`bastion.cli.rows`).
    """

    summary: str
    usage: str
    run: Callable[[Invocation], int]
    define: Callable[[flags.FlagValues], None] = no_flags
    details: str = ""
    examples: tuple[str, ...] = ()
    operands: tuple[int, int | None] = (0, 0)
    completes: str = ""
    takes_command: bool = False
    takes_target: bool = True
    takes_output: bool = False
    takes_rows: bool = False

    def values(self) -> flags.FlagValues:
        """Define the flags anew, with their defaults."""
        values = flags.FlagValues()  # type: ignore[no-untyped-call]
        self.define(values)
        if self.takes_target:
            flags.DEFINE_string(
                "root",
                None,
                "The bastion's folder: gs://BUCKET/NAME-bastion, s3://BUCKET/NAME-bastion or a local folder; replaces "
                "--bastion and --bucket.",
                flag_values=values,
            )
            flags.DEFINE_string(
                "bastion", None, "The bastion's name, which ends in -bastion. Requires --bucket.", flag_values=values
            )
            flags.DEFINE_string(
                "bucket", None, "The bastion's bucket: gs://BUCKET, s3://BUCKET or a local folder.", flag_values=values
            )
        if self.takes_output:
            flags.DEFINE_enum("output", "text", ["text", "json"], "Format of the data on stdout.", flag_values=values)
        if self.takes_rows:
            flags.DEFINE_enum("output", "table", OUTPUTS, "Format of the data on stdout.", flag_values=values)
        return values
