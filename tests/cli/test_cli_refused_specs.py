"""What `bastion list` shows of refused specs in inboxes."""

from __future__ import annotations

from bastion.core import limits
from bastion.core.bucket import keys


def test_a_refused_name_of_any_length_does_not_widen_the_list_and_its_inbox_is_named(run, bastion) -> None:
    bastion.use_inboxes()
    bastion.settle(3)
    name = "n" * 250
    bastion.submit("job", inbox="alice")
    bastion.store.put(keys.active(name, "mallory"), b"{}", generation=0)
    bastion.settle(4)
    rows = {line.split()[0]: line for line in run("list").out.splitlines()}
    shown = f"{'n' * limits.NAME_MAX_CHARS}..."
    assert rows[shown].split()[1:6] == ["INVALID", "-", "-", "-", "mallory"]


def test_a_spec_beside_the_inboxes_is_listed_until_it_is_gone(run, bastion) -> None:
    bastion.use_inboxes()
    bastion.settle(3)
    meta = bastion.store.put(keys.active("late"), b"{}", generation=0)
    bastion.settle(40)  # what lies there is listed now and then
    row = next(line for line in run("list").out.splitlines() if line.startswith("late"))
    assert row.split()[1] == "INVALID"
    assert "inbox" in run("why", "late").out
    bastion.store.delete(keys.active("late"), generation=meta.generation)
    bastion.settle(40)
    assert "late" not in run("list").out
