"""`bastion outputs` on a simulated bastion: the list, the fetch, and what it says when there is nothing."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from pathlib import Path

import pytest

from bastion.core.bucket import keys, outputs
from bastion.core.bucket.manifest_proofs import ManifestProofs
from bastion.core.bucket.outputs import Manifest, Part, StoredFile
from bastion.testing.counting_store import CountingStore
from bastion.testing.scripted_hosts import runs_for
from tests.cli.test_cli_requests import documented, remote

__all__ = ["remote"]


def ended(bastion, name: str = "job", **options: object) -> str:
    bastion.hosts.scripts[name] = runs_for(1)
    uid = bastion.submit(name, instance_type="tpu-v4-16", **options)
    bastion.run_until(lambda: (bastion.result(name) or {}).get("uid") == uid)
    return uid


def store(bastion, uid: str, host: int, **files: bytes) -> None:
    """What a host's agent stores."""
    place = keys.outputs("job", uid, host)
    stored = {}
    for path, data in files.items():
        name = f"0000000001/files/{path}"
        bastion.store.put(place + name, data, generation=0)
        part = Part(object=name, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        stored[path] = StoredFile(mode=0o644, mtime_ns=10**18, parts=(part,))
    manifest = Manifest(run=f"{uid}-1", seq=1, files=stored)
    data = ManifestProofs(place=place).to_bytes(manifest, bastion.run_keys.drawn(f"{uid}-1"))
    bastion.store.put(place + outputs.manifest_name(1), data, generation=0)


@pytest.fixture
def stored(bastion) -> str:
    uid = ended(bastion, output_dir="out")
    for host in (0, 1):
        store(bastion, uid, host, result=b"of %d" % host)
    return uid


def test_the_list_names_file_size_worker_and_attempt(run, stored) -> None:
    lines = run("outputs", "job", code=0).out.splitlines()
    assert [line.split()[:5] for line in lines[1:]] == [["result", "4", "B", str(n), "1"] for n in (0, 1)]
    (row,) = csv.DictReader(io.StringIO(run("outputs", "job", "--worker=1", "--output=csv", code=0).out))
    assert (row["path"], row["bytes"], row["worker"], row["modified"][:10]) == ("result", "4", "1", "2001-09-09")
    document = json.loads(run("outputs", "job", "--output=json", code=0).out)
    assert [(file["path"], file["bytes"], file["proved"]) for file in document["files"]] == [("result", 4, True)] * 2


def test_a_terminal_gets_the_total_and_what_to_type_next(on_terminal, stored) -> None:
    assert "2 files, 8 B; to fetch them: bastion outputs job --to=DIR" in on_terminal("outputs", "job")


def test_a_fetch_says_what_it_did_and_is_repeated_for_nothing(run, stored, tmp_path: Path) -> None:
    done = run("outputs", "job", "--to=got", code=0)
    assert (done.out, "fetched 2 files, 8 B" in done.err) == ("", True)
    assert [(tmp_path / f"got/worker-{n}/result").read_bytes() for n in (0, 1)] == [b"of 0", b"of 1"]
    assert "2 were there already" in run("outputs", "job", "--to=got", code=0).err
    (tmp_path / "got/worker-0/result").write_text("mine")
    assert "--force" in run("outputs", "job", "--to=got", code=64).err
    run("outputs", "job", "--to=got", "--force", code=0)


def test_a_fetch_that_fails_in_part_names_the_file_and_exits_with_1(run, bastion, stored, tmp_path: Path) -> None:
    key = f"{keys.outputs('job', stored, 0)}0000000001/files/result"
    bastion.store.put(key, b"evil", generation=bastion.store.head(key).generation)
    done = run("outputs", "job", "--to=got", code=1)
    assert "not fetched: worker-0/result: " in done.err
    assert (tmp_path / "got/worker-1/result").exists()
    assert not (tmp_path / "got/worker-0/result").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nobody",), "no such job"),
        (("job", "*.bin"), "matches"),
        (("job", "--attempt=7"), "is of attempt 1"),
        (("job", "--worker=7"), "worker-0, worker-1 have"),
        (("job", "--to="), "--to is empty"),
        (("job", "--force"), "requires --to"),
    ],
)
def test_nothing_to_show_exits_with_64_and_says_why(run, stored, arguments: tuple[str, ...], said: str) -> None:
    assert said in run("outputs", *arguments, code=64).err


def test_a_job_without_an_output_folder_is_told_from_one_that_wrote_nothing(run, bastion) -> None:
    ended(bastion, "without")
    assert "--output_dir" in run("outputs", "without", code=64).err
    ended(bastion, "silent", output_dir="out")
    assert "wrote nothing" in run("outputs", "silent", code=64).err


def test_what_a_program_wrote_itself_is_listed_and_only_fetched_if_asked_for(
    run, bastion, stored, tmp_path: Path
) -> None:
    bastion.store.put(f"{keys.output_shared('job', stored)}/step", b"x", generation=0)
    assert [line.split()[-1] for line in run("outputs", "job", code=0).out.splitlines()[1:]] == ["yes", "yes", "no"]
    assert "BASTION_OUTPUT_URL" in run("outputs", "job", "--to=got", code=0).err
    assert not (tmp_path / "got/shared").exists()
    run("outputs", "job", "--to=got", "--unproved", code=0)
    assert (tmp_path / "got/shared/step").read_bytes() == b"x"


def test_the_outputs_cost_what_the_table_says(run, stored, remote: CountingStore) -> None:
    run("outputs", "job", code=0)
    assert remote.requests == documented("bastion outputs JOB") + 2
    remote.reset()
    run("outputs", "job", "--to=got", code=0)
    assert remote.requests == documented("bastion outputs JOB") + 2 + 2
