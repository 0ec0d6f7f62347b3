"""What a command on one slice tries against the measurements of another job: with the hosts' own account.

docs/explanation/security.md lists each attack with its test.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.benchmark.collect import JobValues
from bastion.benchmark.results import read_values
from bastion.client.jobs.results import read_result
from bastion.core.bucket import keys, result_proofs
from bastion.core.bucket.protocol import HostPhase
from bastion.core.bucket.results import HostResults
from bastion.core.run_keys import RunKey
from tests.support.attacked_slices import AttackedSlices

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

OWN = RunKey(b"m" * 32)  # of the attacker's own run
MEASURES = """echo "{\\"metric\\": \\"m\\", \\"value\\": 1}" > "$BASTION_RESULTS_FILE" """
FORGED = HostResults(attempt=1, try_number=9, exit_code=0, lines=['{"metric": "m", "value": 9}'])


@pytest.fixture(scope="module")
def slices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedSlices]:
    slices = AttackedSlices(tmp_path_factory.mktemp("slices"))
    yield slices
    slices.close()


def measuring(slices: AttackedSlices, name: str, release: Path, *, hosts: int = 1) -> tuple[str, str]:
    """Start a job that measures when the file is there; return the key of its first host's results, and its run."""
    command = f"bash -c 'while [ $BASTION_HOST_INDEX = 0 ] && [ ! -e {release} ]; do sleep 0.05; done; {MEASURES}'"
    run = slices.submit(name, command, hosts=hosts)
    slices.until(lambda: (report := slices.report(run)) is not None and report.phase is HostPhase.RUNNING)
    return keys.results(name, run.partition("-")[0], 0), run


def values(slices: AttackedSlices, name: str, *, hosts: int = 1) -> JobValues:
    """What the finisher of a benchmark believes of an ended job."""
    store = slices.store("user")
    result = read_result(store.get(keys.complete(name)).data, name=name)
    return read_values(store, name, hosts, result.public_keys)


def numbers(found: JobValues) -> list[float]:
    return [each.value for each in found.values.get("m", [])]


def test_results_written_first_are_written_over(slices: AttackedSlices, tmp_path: Path) -> None:
    key, _ = measuring(slices, "written-first", tmp_path / "go")
    slices.overwrite(key, result_proofs.to_bytes(FORGED.model_copy(update={"attempt": 7}), key, OWN))
    (tmp_path / "go").touch()
    slices.until(lambda: slices.result("written-first"))
    assert slices.result("written-first") == ("succeeded", 0, 1)
    found = values(slices, "written-first")
    assert (numbers(found), found.problems) == ([1.0], ())


def test_results_replaced_while_a_host_of_the_run_lives_are_written_again(
    slices: AttackedSlices, tmp_path: Path
) -> None:
    key, _ = measuring(slices, "replaced-early", tmp_path / "go", hosts=2)
    of_host_1 = f"{key.removesuffix('0')}1"
    slices.until(lambda: slices.attacker.head(of_host_1) is not None)
    true = slices.attacker.get(of_host_1).data
    for forged in (FORGED.to_bytes(), result_proofs.to_bytes(FORGED, of_host_1, OWN), b"x" * 3_000_000):
        slices.overwrite(of_host_1, forged)
        slices.until(lambda: slices.attacker.get(of_host_1).data == true)
    meta = slices.attacker.head(of_host_1)
    assert meta is not None
    slices.attacker.delete(of_host_1, generation=meta.generation)
    slices.until(lambda: slices.attacker.head(of_host_1) is not None)
    (tmp_path / "go").touch()
    slices.until(lambda: slices.result("replaced-early"))
    found = values(slices, "replaced-early", hosts=2)
    assert (numbers(found), found.problems) == ([1.0, 1.0], ())


def test_results_replaced_after_the_end_have_no_value(slices: AttackedSlices, tmp_path: Path) -> None:
    other, other_run = measuring(slices, "other-figures", tmp_path / "go")
    key, _ = measuring(slices, "replaced-late", tmp_path / "go")
    (tmp_path / "go").touch()
    slices.until(lambda: slices.result("replaced-late") and slices.result("other-figures"))
    assert numbers(values(slices, "replaced-late")) == [1.0]
    true = slices.attacker.get(key).data
    for forged in (
        FORGED.to_bytes(),
        result_proofs.to_bytes(FORGED, key, OWN),
        result_proofs.to_bytes(FORGED, key, slices.key_of(other_run)),
        FORGED.model_copy(update={"attempt": 2}).to_bytes(),
        slices.attacker.get(other).data,
        true.replace(b'\\"value\\": 1}', b'\\"value\\": 9}'),
    ):
        assert forged != true
        slices.overwrite(key, forged)
        found = values(slices, "replaced-late")
        assert (numbers(found), len(found.problems)) == ([], 1)
        assert "host 0 do not prove to be of attempt" in found.problems[0]
        assert "run the benchmark again" in found.problems[0]
    slices.overwrite(key, true)
    assert numbers(values(slices, "replaced-late")) == [1.0]
