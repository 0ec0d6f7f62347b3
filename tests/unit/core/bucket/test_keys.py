"""Keys, runs and uids."""

from __future__ import annotations

from bastion.core.bucket import keys
from bastion.core.bucket.keys import Run
from bastion.core.model.gangs import GangRef


def test_a_uid_is_ten_characters_that_depend_on_root_name_and_generation() -> None:
    uids = {keys.job_uid(r, n, g) for r in ("/a", "/b") for n in ("x", "y") for g in (1, 2)}
    assert len(uids) == 8
    assert all(len(uid) == 10 and Run.parse(f"{uid}-1") is not None for uid in uids)


def test_a_run_reads_back_from_its_text() -> None:
    uid = keys.job_uid("/a", "x", 1)
    assert [Run.parse(str(Run(uid, n))) for n in (0, 1, 12)] == [Run(uid, 0), Run(uid, 1), Run(uid, 12)]
    assert Run.parse("nonsense") is None
    assert Run.parse(f"{uid}-0") is None


def test_log_segments_sort_as_text_in_the_order_of_their_lines() -> None:
    names = [keys.log_segment("j", "r-1", 0, seq) for seq in (1, 2, 9, 10, 11, 100, 99_999_999)]
    assert sorted(names) == names


def test_a_hostile_name_becomes_a_hash_in_our_own_keys() -> None:
    assert keys.invalid("../../etc/passwd").startswith("jobs/invalid/sha256-")
    assert keys.invalid("fine") == "jobs/invalid/fine"
    assert keys.invalid("sha256-fine") != "jobs/invalid/sha256-fine"


def test_a_node_is_named_after_its_run_and_its_slice_only_if_there_are_several() -> None:
    assert keys.gang("abc-1") == "b-abc-1"
    assert GangRef(name="b-abc-1").node(0) == "b-abc-1"
    assert GangRef(name="b-abc-1", num_slices=2).node(1) == "b-abc-1-1"
