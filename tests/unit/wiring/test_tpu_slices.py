"""Where slices come from: as the settings say, and never from elsewhere while a daemon runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bastion.core.errors import ProvisionerUnavailable
from bastion.core.model.provisioning import BUILT_IN
from bastion.testing.fake_provisioner import FakeProvisioner
from bastion.testing.manual_clock import ManualClock
from bastion.wiring.tpu_slices import CloudApi, CloudSlices

SETTINGS = replace(BUILT_IN, project="p")


class Connections:
    """Notes what was connected to."""

    def __init__(self) -> None:
        self.made: list[CloudApi] = []

    def __call__(self, api: CloudApi) -> FakeProvisioner:
        self.made.append(api)
        return FakeProvisioner(ManualClock())


def test_before_the_first_settings_the_api_does_not_answer_and_nothing_is_connected() -> None:
    connect = Connections()
    slices = CloudSlices(connect, bucket_is_near=False)
    with pytest.raises(ProvisionerUnavailable, match=r"config/daemon\.toml"):
        slices.provisioner.list("us-central2-b")
    assert connect.made == []


def test_one_connection_serves_as_long_as_the_settings_name_the_same_api() -> None:
    connect = Connections()
    slices = CloudSlices(connect, bucket_is_near=False)
    assert slices.apply_settings(SETTINGS) == ""
    slices.provisioner.list("a")
    assert slices.apply_settings(replace(SETTINGS, warnings=("changed",))) == ""
    slices.provisioner.list("a")
    assert connect.made == [CloudApi(project="p", endpoint="", token="")]


@pytest.mark.parametrize("change", [{"project": "q"}, {"endpoint": "127.0.0.1:1"}], ids=["project", "endpoint"])
def test_another_project_or_endpoint_waits_for_another_daemon(change: dict[str, str]) -> None:
    connect = Connections()
    slices = CloudSlices(connect, bucket_is_near=False)
    slices.apply_settings(SETTINGS)
    assert "slices still come from p, but" in slices.apply_settings(replace(SETTINGS, **change))
    slices.provisioner.list("a")
    assert [api.project for api in connect.made] == ["p"]
    assert slices.apply_settings(SETTINGS) == ""


def test_slices_in_the_cloud_are_not_created_for_a_bucket_on_this_machine() -> None:
    connect = Connections()
    slices = CloudSlices(connect, bucket_is_near=True)
    assert "cannot reach a bucket on this machine" in slices.apply_settings(SETTINGS)
    with pytest.raises(ProvisionerUnavailable):
        slices.provisioner.list("a")
    assert slices.apply_settings(replace(SETTINGS, endpoint="127.0.0.1:1")) == ""
    slices.provisioner.list("a")
    assert [api.endpoint for api in connect.made] == ["127.0.0.1:1"]


@pytest.mark.parametrize(
    "content", ["secret\n", json.dumps({"address": "x", "token": "secret"})], ids=["plain", "json"]
)
def test_the_token_comes_from_its_file_and_a_new_one_is_taken_up(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    connect = Connections()
    slices = CloudSlices(connect, bucket_is_near=True)
    slices.apply_settings(replace(SETTINGS, endpoint="127.0.0.1:1", token_file=str(file)))
    with pytest.raises(ProvisionerUnavailable, match="token_file"):
        slices.provisioner.list("a")
    file.write_text(content, "utf-8")
    slices.provisioner.list("a")
    file.write_text(content.replace("secret", "other"), "utf-8")
    slices.provisioner.list("a")
    assert [api.token for api in connect.made] == ["secret", "other"]
