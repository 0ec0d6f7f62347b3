"""`bastion doctor` at a ROOT inside of a managed folder, whose policy holds for the ROOT, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bastion.cli.main import main
from tests.support.rights import how_to
from tests.support.rights.bindings import Granted
from tests.support.rights.deployment import opened
from tests.support.rights.how_to import BUCKET


def test_a_policy_around_the_root_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BASTION_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "owner")
    public = Granted(
        bucket=BUCKET, folder="team/", role="roles/storage.objectViewer", member="allUsers", condition=None
    )
    with opened(tmp_path / "buckets", how_to.roles()) as stage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", stage.url)
        stage.grant([(BUCKET, "team/")], [public])
        assert main(["doctor", f"--root=gs://{BUCKET}/team/x-bastion", "--output=json"]) == 1
    what = [found["what"] for found in json.loads(capsys.readouterr().out)["findings"]]
    assert f"allUsers may read objects of gs://{BUCKET}/team/" in what
