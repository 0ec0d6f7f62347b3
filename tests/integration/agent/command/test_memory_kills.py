"""A host whose kernel counted a kill while the command ran says so in its report."""

from __future__ import annotations

import pytest

from bastion.agent.command import one_try
from bastion.agent.command.memory_kills import MemoryKills
from bastion.core.bucket.protocol import HostPhase
from tests.support.worker_stage import Stage


@pytest.mark.parametrize(("command", "told"), [("kill -9 $$", True), ("true", False)])
def test_the_report_of_a_killed_command_has_what_the_kernel_counted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, command: str, told: bool
) -> None:
    counts = iter([1, 2])

    class Counting(MemoryKills):
        @staticmethod
        def now() -> MemoryKills:
            return MemoryKills(group=next(counts), host=None)

    monkeypatch.setattr(one_try, "MemoryKills", Counting)
    stage.run(command, host=stage.host(on_vm=True))
    report = stage.final()
    assert report.phase is HostPhase.EXITED
    assert ("out of memory" in report.message) is told
