"""What `bastion quota export` writes: as reviewed, and accepted strictly by Kueue's definitions."""

from __future__ import annotations

import pytest

from bastion.client import yaml_writer
from tests.golden.kubernetes import golden_files
from tests.support.kubernetes_schemas import crd_folder, kueue_problems
from tests.support.kueue_exports import FILES, exported

yaml = pytest.importorskip("yaml", reason="comes with the official client: pip install 'bastion[kubernetes]'")


@pytest.mark.parametrize("name", FILES)
def test_the_objects_are_those_that_were_reviewed(name: str) -> None:
    found = exported(name)
    text = yaml_writer.documents(found.objects) + "".join(f"# {note}\n" for note in found.notes)
    golden_files.check(f"quota-export-{name}.yaml", text)
    assert list(yaml.safe_load_all(text)) == list(found.objects)


@pytest.mark.parametrize("name", FILES)
def test_kueues_definitions_accept_them_strictly(name: str) -> None:
    try:
        crd_folder()
    except FileNotFoundError as absent:
        pytest.skip(str(absent))
    for each in exported(name).objects:
        assert kueue_problems(each) == [], each["metadata"]["name"]


def test_the_checker_notices_mistakes() -> None:
    try:
        crd_folder()
    except FileNotFoundError as absent:
        pytest.skip(str(absent))
    (queue, *_) = (each for each in exported("small").objects if each["kind"] == "ClusterQueue")
    spec = queue["spec"]
    assert kueue_problems({**queue, "spec": {**spec, "cohort": "x"}}) == ["ClusterQueue.spec.cohort: unknown field"]
    assert kueue_problems({**queue, "spec": {**spec, "stopPolicy": "hold"}})
    assert kueue_problems({**queue, "metadata": {**queue["metadata"], "namespace": "x"}}) == [
        "ClusterQueue: its namespace"
    ]
