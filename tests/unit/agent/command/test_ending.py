"""What users read about how a try ended."""

from __future__ import annotations

import pytest

from bastion.agent.command.ending import Ending
from bastion.core.bucket.protocol import HostPhase


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("", "it was late."),
        ("Some processes could not be ended.", "Some processes could not be ended. it was late."),
        ("the limit is 100 MiB", "the limit is 100 MiB; it was late."),
    ],
)
def test_a_remark_does_not_run_into_the_message(message: str, expected: str) -> None:
    assert Ending(phase=HostPhase.FAILED, ended_at=1.0, message=message).with_remark("it was late").message == expected
