"""`[projects.NAME]` of the settings: whose identity the hosts of a project have."""

from __future__ import annotations

import pytest

from bastion.core.model import daemon_settings
from bastion.core.model.daemon_settings import SettingsError
from bastion.core.model.gangs import Place
from bastion.testing.cluster import Cluster

SETTINGS = b"""
project = "my-project"
[defaults]
zones = ["us-central2-b"]
service_account = "workers@my-project.iam.gserviceaccount.com"
[projects.b]
service_account = "b@my-project.iam.gserviceaccount.com"
pod_service_account = "b-workers"
[[tiers]]
model = "on-demand"
"""


def test_the_hosts_of_a_project_have_its_account_and_those_of_others_that_of_the_type() -> None:
    cluster = Cluster(without_settings=None)
    cluster.write_settings(SETTINGS)
    cluster.submit("of-a", instance_type="tpu-v4-8")
    cluster.submit("of-b", user="bob", project="b", instance_type="tpu-v4-8")
    cluster.run_until(lambda: len(cluster.slices.created) == 2)
    accounts = {
        name: record.attempt.place.service_account
        for name in ("of-a", "of-b")
        if (record := cluster.record(name)) and record.attempt and record.attempt.place
    }
    assert accounts == {
        "of-a": "workers@my-project.iam.gserviceaccount.com",
        "of-b": "b@my-project.iam.gserviceaccount.com",
    }
    assert {request.place.service_account for request in cluster.slices.created} == set(accounts.values())


def test_an_attempt_keeps_its_account_when_the_settings_change() -> None:
    cluster = Cluster(without_settings=None)
    cluster.write_settings(SETTINGS)
    cluster.submit("of-b", user="bob", project="b", instance_type="tpu-v4-8")
    cluster.run_until(lambda: cluster.hosts.live("of-b"))
    cluster.write_settings(SETTINGS.replace(b'"b@', b'"other@'))
    cluster.settle(40)
    record = cluster.record("of-b")
    assert record is not None and record.attempt is not None and record.attempt.place is not None
    assert record.attempt.place.service_account == "b@my-project.iam.gserviceaccount.com"


def test_what_a_project_does_not_say_is_as_for_all() -> None:
    settings = daemon_settings.load(
        SETTINGS.replace(b'service_account = "b@my-project.iam.gserviceaccount.com"\n', b"")
    )
    place = Place(service_account="type@x")
    assert settings.of_project(place, "b") == Place(service_account="type@x", pod_service_account="b-workers")
    assert settings.of_project(place, "a") is place


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'pod_service_account = "Not A Name"', "projects.b.pod_service_account is not valid"),
        (b'pod_account = "x"', "projects.b.pod_account is not a valid key; did you mean pod_service_account?"),
    ],
)
def test_a_mistake_in_a_projects_table_is_told(line: bytes, message: str) -> None:
    with pytest.raises(SettingsError, match=message.replace("?", r"\?")):
        daemon_settings.load(SETTINGS.replace(b'pod_service_account = "b-workers"', line))
