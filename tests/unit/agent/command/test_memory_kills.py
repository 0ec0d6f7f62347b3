"""What a host says of the kernel's kills for lack of memory, and what becomes of it in the job's message."""

from __future__ import annotations

from pathlib import Path

import pytest

from bastion.agent.command.memory_kills import MemoryKills
from bastion.core.exit_codes import ending_text, meaning, says_memory


def counters(folder: Path, *, group: str = "", host: str = "", own: str = "0::/job\n") -> MemoryKills:
    (folder / "job").mkdir(exist_ok=True)
    for path, text in (("own", own), ("vmstat", host), ("job/memory.events", group)):
        (folder / path).write_text(text)
    return MemoryKills.now(cgroups=folder, own=folder / "own", vmstat=folder / "vmstat")


EVENTS = "low 0\nhigh 0\nmax 7\noom 1\noom_kill {}\noom_group_kill 0\n"
VMSTAT = "nr_free_pages 1\noom_kill {}\n"


def test_a_kill_in_the_commands_own_group_is_certain(tmp_path: Path) -> None:
    before = counters(tmp_path, group=EVENTS.format(3), host=VMSTAT.format(8))
    after = counters(tmp_path, group=EVENTS.format(4), host=VMSTAT.format(9))
    told = before.told(after, shared=False)
    assert told == "killed, out of memory: the kernel ended a process of the job on this host"
    assert ending_text(137, told + ". Some processes could not be ended.") == (
        f"was {told}. Some processes could not be ended"
    )
    assert ending_text(1, told) == f"exited with code 1 after a process was {told}"
    assert says_memory(ending_text(137, told))


def test_a_kill_elsewhere_on_the_host_or_in_a_shared_group_is_a_hint(tmp_path: Path) -> None:
    before = counters(tmp_path, group=EVENTS.format(3), host=VMSTAT.format(8))
    elsewhere = counters(tmp_path, group=EVENTS.format(3), host=VMSTAT.format(10))
    assert before.told(elsewhere, shared=False) == (
        "killed, perhaps out of memory: meanwhile the kernel ended a process on this host for lack of memory 2 times"
    )
    shared = counters(tmp_path, group=EVENTS.format(4), host="")
    assert before.told(shared, shared=True).startswith("killed, perhaps out of memory")


@pytest.mark.parametrize(
    ("group", "host", "own"),
    [("", "", "0::/job\n"), (EVENTS.format("x"), "oom_kill\n", "0::/job\n"), (EVENTS.format(9), "", "4:memory:/job\n")],
)
def test_a_kernel_that_does_not_tell_is_not_guessed_at(tmp_path: Path, group: str, host: str, own: str) -> None:
    before = counters(tmp_path, group=EVENTS.format(3), host=VMSTAT.format(8))
    after = counters(tmp_path, group=group, host=host, own=own)
    assert before.told(after, shared=False) == before.told(before, shared=False) == ""
    assert ending_text(137, "") == "was killed by SIGKILL (often: out of memory)"


def test_the_files_may_be_missing(tmp_path: Path) -> None:
    nowhere = tmp_path / "none"
    found = MemoryKills.now(cgroups=nowhere, own=nowhere, vmstat=nowhere)
    assert (found.group, found.host) == (None, None)


def test_a_message_of_a_host_about_something_else_is_no_ending() -> None:
    assert ending_text(3, "the outputs are not complete") == "exited with code 3"


@pytest.mark.parametrize("code", [1, 2, 126, 127, 134, 137, 139, 143])
def test_the_usual_codes_have_a_meaning(code: int) -> None:
    assert meaning(code)


def test_other_codes_have_none() -> None:
    assert meaning(42) == meaning(None) == ""
