"""One parser of what comes from outside, and what it may do with any bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.fuzz.mangling import Form

# Far above what any input takes on an idle machine; a parser that is not linear passes it.
SECONDS_MAX = 5.0
INPUT_MAX_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A parser as the fuzzers call it.

    Attributes:
        parse: Reads the bytes as the program does, and asserts what must hold of the value, such as that it survives
            being written and read.
        errors: The documented errors for bytes that are not acceptable. Anything else that `parse` raises is a fault.
        seeds: Valid inputs, made by the program's own writers where it has some.
    """

    name: str
    parse: Callable[[bytes], object]
    errors: tuple[type[BaseException], ...]
    seeds: Callable[[], Sequence[bytes]]
    form: Form = Form.JSON

    def check(self, data: bytes) -> bool:
        """Parse an input; return whether it was accepted.

        Raises what is a fault: an error of another class, or AssertionError if it took too long.
        """
        begun = time.process_time()
        try:
            self.parse(data)
            accepted = True
        except self.errors:
            accepted = False
        taken = time.process_time() - begun
        assert taken < SECONDS_MAX, f"{self.name}: {len(data)} bytes took {taken:.1f} s"
        return accepted
