"""The daemon's settings: what a file means, and what a person reads who wrote a wrong one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bastion.core.model import daemon_settings
from bastion.core.model.budgets import Budgets
from bastion.core.model.daemon_settings import FINDERS, SettingsError, load
from bastion.core.model.gangs import CapacityModel, Place
from bastion.core.model.instance_types import cloud_tpu_types, lookup
from bastion.core.model.provisioning import BUILT_IN, tiers_without_settings, why_not_placed
from bastion.core.model.world import Installation, World, next_place
from quota import load as load_quota
from tests.support.daemon_settings_files import GOOD, problems, runner

PAGE = Path(__file__).resolve().parents[4] / "docs" / "reference" / "daemon-settings.md"
V4, V5E = lookup("tpu-v4-16"), lookup("tpu-v5litepod-16")


def test_a_tier_says_as_what_a_gang_is_created_and_its_type_where() -> None:
    settings = load(GOOD.encode())
    common = {"network": "net", "external_ips": False, "service_account": "worker@my-project.iam"}
    assert settings.places(V4, 0) == (
        Place(zone="us-central2-b", model=CapacityModel.RESERVED, reservation="r4", **common),
    )
    own = {**common, "subnetwork": "sub", "runtime_version": "v2-alpha-tpuv5-lite"}
    assert settings.places(V5E, 2) == (
        Place(zone="us-west4-a", model=CapacityModel.SPOT, **own),
        Place(zone="us-central1-a", model=CapacityModel.SPOT, **own),
    )


def test_a_reservation_lies_in_the_types_first_zone_unless_the_tier_says_where() -> None:
    settings = load(GOOD.encode())
    assert [(p.zone, p.reservation) for p in settings.places(V5E, 0)] == [("us-west4-a", "r5")]
    assert [p.zone for p in settings.places(V5E, 1)] == ["us-south1-a"]
    assert [p.zone for p in settings.places(V4, 1)] == ["us-central2-b"]
    elsewhere = load(GOOD.replace('"r5" }', '"r5" }\nzones = ["us-west1-c"]').encode())
    assert [(p.zone, p.reservation) for p in elsewhere.places(V5E, 0)] == [("us-west1-c", "r5")]


def test_the_last_tier_stands_for_all_that_come_after_it_and_no_tier_is_the_first() -> None:
    settings = load(GOOD.encode())
    assert settings.places(V4, 7) == settings.places(V4, 2)
    assert settings.places(V4, None) == settings.places(V4, 0)


def test_only_families_with_zones_are_provisioned_and_the_zones_of_all_of_them_are_listed() -> None:
    settings = load(GOOD.encode())
    assert list(settings.resource_types) == ["v4", "v5litepod"]
    assert settings.places(lookup("tpu-v6e-8"), 0) == ()
    assert settings.zones() == {"us-central2-b", "us-west4-a", "us-central1-a", "us-south1-a"}
    everywhere = load(
        b'project = "p"\n[defaults]\nzones = ["a-b1-c"]\nservice_account = ""\n[[tiers]]\nmodel = "spot"\n'
    )
    assert tuple(everywhere.resource_types) == cloud_tpu_types()


def test_what_a_file_does_not_say_are_the_limits() -> None:
    assert load(GOOD.encode()).budgets == Budgets() == BUILT_IN.budgets
    more = GOOD + "[grace]\nfailure_seconds = 7\n[budgets]\ninfrastructure_attempts = 9\npower_off_hours = 0.5\n"
    assert load(more.encode()).budgets == Budgets(
        failure_grace_seconds=7, infrastructure_attempts=9, power_off_seconds=1800
    )


@pytest.mark.parametrize(
    ("line", "user"),
    [
        ("", "bastion-job"),
        ("host_job_user = true\n", "bastion-job"),
        ("host_job_user = false\n", ""),
        ('host_job_user = "trainer"\n', "trainer"),
        ('host_job_user = "64000:64001"\n', "64000:64001"),
    ],
)
def test_commands_have_a_user_of_their_own_unless_the_file_says_otherwise(line: str, user: str) -> None:
    assert load((line + GOOD).encode()).host_job_user == user
    assert BUILT_IN.host_job_user == ""


@pytest.mark.parametrize("value", ['""', '"0:0"', '"a b"', '"64000:"', "1", '"-u"'])
def test_a_user_that_no_host_can_have_is_refused(value: str) -> None:
    with pytest.raises(daemon_settings.SettingsError, match="host_job_user is not valid"):
        load((f"host_job_user = {value}\n" + GOOD).encode())


@pytest.mark.parametrize(
    ("text", "key", "finder"),
    [
        ("", "project", "gcloud config get project"),
        ('project = "p"\n', "tiers", "bastion quota show"),
        ('project = "p"\n', "defaults.zones", "gcloud compute tpus locations list --project=p"),
        ('project = "p"\n[types.v4]\n', "types.v4.zones", "gcloud compute tpus locations list --project=p"),
        (
            'project = "p"\n[types.v4]\nzones = ["us-central2-b"]\n',
            "types.v4.service_account",
            "gcloud iam service-accounts list --project=p",
        ),
        (
            '[defaults]\nzones = ["us-central2-b"]\n[types.v4]\nservice_account = "a"\n',
            "defaults.service_account",
            "gcloud iam service-accounts list --project=PROJECT",
        ),
        (
            'project = "p"\n[types.v4]\nzones = ["us-central2-b"]\n[[tiers]]\n',
            "tiers[0].model",
            "gcloud alpha compute tpus reservations list --project=p --zone=us-central2-b",
        ),
        (
            'project = "p"\n[[tiers]]\nmodel = "spot"\n[[tiers]]\nmodel = "reserved"\n',
            "tiers[1].reservation",
            "gcloud alpha compute tpus reservations list --project=p --zone=ZONE",
        ),
    ],
    ids=[
        "project",
        "tiers",
        "no-zones",
        "zones-of-a-type",
        "account-of-a-type",
        "account-of-all",
        "model",
        "reservation",
    ],
)
def test_a_missing_key_is_named_with_the_command_that_finds_its_value(text: str, key: str, finder: str) -> None:
    told = [re.sub(r"^line \d+: ", "", problem) for problem in problems(text)]
    assert f"{key} is missing; find it with: {finder}" in told


def test_every_required_key_of_an_empty_file_is_told_at_once() -> None:
    assert [problem.split(" is missing")[0] for problem in problems("")] == [
        "project",
        "tiers",
        "defaults.zones",
        "defaults.service_account",
    ]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('project = "my-project"', "project = 3", "line 2: project is not valid: input should be a valid string"),
        (
            'network = "net"',
            'netwrok = "net"',
            "line 4: defaults.netwrok is not a valid key; did you mean net",
        ),
        ("[types.v4]", "[types.v5e]", "types.v5e is not a served resource type; did you mean v5litepod?"),
        ("[types.v4]", "[types.gb200]", "types.gb200 is not a served resource type; served: a100, a100-80gb, b200"),
        ("[types.v4]", "[types.h100-80gb]", "types.h100-80gb is not a served resource type; did you mean h100?"),
        ("[types.v4]", "[types.a100]", "types.a100.zones: Cloud TPU has no a100; use a cluster (k8s:NAME)"),
        ("[types.v4]", "[tiers]\n[types.v4]", "the file is not valid TOML"),
        ('["us-central2-b"]', '"us-central2-b"', "types.v4.zones is not valid: input should be a valid list"),
        ('["us-central2-b"]', '["US/x"]', "types.v4.zones[0] is not valid"),
        ('["us-central2-b"]', "[]", "types.v4.zones is not valid"),
        ('model = "spot"', 'model = "cheap"', "tiers[2].model is not valid: input should be 'reserved', 'on-demand'"),
        ('model = "spot"', 'model = "spot"\nreservation = "r"', 'tiers[2].reservation requires model "reserved"'),
        ("v4 = ", "v9 = ", "tiers[0].reservation.v9 is not a served resource type"),
        ("[[tiers]]", "[grace]\neviction_seconds = -1\n[[tiers]]", "grace.eviction_seconds is not valid"),
        ("[[tiers]]", "[budgets]\npower_off_hours = nan\n[[tiers]]", "budgets.power_off_hours is not valid"),
        (
            "[[tiers]]",
            "[budgets]\ninfrastructure_attempts = 0\n[[tiers]]",
            "infrastructure_attempts is not valid",
        ),
        ("[[tiers]]", "[budgets]\ninfrastructure_attempts = true\n[[tiers]]", "infrastructure_attempts is not valid"),
        ('project = "my-project"', 'version = 2\nproject = "p"', "version is not valid: input should be 1"),
        ('project = "my-project"', 'project = "p"\nendpoint = "http://x"', "endpoint is not valid"),
    ],
)
def test_a_wrong_value_is_told_with_its_line_and_key(old: str, new: str, words: str) -> None:
    assert any(words in problem for problem in problems(GOOD.replace(old, new, 1)))


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"x = [",
        b"x = " + b"[" * 100_000,
        b"x = " + b"9" * 5000,
        b"#" * (1024 * 1024 + 1),
        b"tiers = 3\ntypes = 4\ndefaults = []\ngrace = 1\nbudgets = [2]\n",
        b"[[types]]\n[[defaults]]\n",
        b"tiers = [3, [], {model = [], reservation = [1], zones = 3}]\ntypes = {v4 = 3, v5p = []}\n",
    ],
    ids=["not-utf-8", "cut-off", "deep", "huge-number", "large", "wrong-tables", "lists-of-tables", "wrong-inside"],
)
def test_whatever_the_bytes_are_they_are_refused_with_words(data: bytes) -> None:
    with pytest.raises(SettingsError) as refusal:
        load(data)
    assert refusal.value.problems
    assert len(str(refusal.value)) < 5000


def test_a_zone_in_which_the_type_was_never_offered_is_a_warning() -> None:
    settings = load(GOOD.replace("us-central2-b", "us-central1-a", 1).encode())
    assert settings.warnings == (
        "v4 was not offered in us-central1-a when this version was made, but in us-central2-b",
    )
    assert load(GOOD.encode()).warnings == ()


def test_a_job_is_held_whose_type_has_no_zones() -> None:
    settings = load(GOOD.encode())
    assert why_not_placed(settings, runner("tpu-v4-16")) == ""
    assert "has no zones for v6e, only for v4, v5litepod" in why_not_placed(settings, runner("tpu-v6e-8"))
    assert "no valid settings" in why_not_placed(None, runner("tpu-v4-16"))
    assert why_not_placed(BUILT_IN, runner("tpu-v6e-8")) == ""
    assert "has no zones for tpu7x" in why_not_placed(BUILT_IN, runner("tpu7x-8"))


def test_more_tiers_in_the_quota_file_than_in_the_settings_are_told() -> None:
    quota = b"""
[toml-schema]
version = "1"
[[total_resources]]
v4 = 8
[[total_resources]]
v4 = 8
[project_membership]
a = ["u"]
[project_resources.a]
v4 = 1.0
"""
    policy = load_quota(quota)
    assert tiers_without_settings(load(GOOD.encode()), policy) == ""
    assert "has 2 tiers and config/daemon.toml describes 1" in tiers_without_settings(BUILT_IN, policy)


def test_each_turn_takes_the_next_zone_and_none_that_is_silent() -> None:
    world = World(
        jobs={}, settings=Installation(root="/r", bastion="b", host_identity="h"), provisioning=load(GOOD.encode())
    )
    quiet = World(
        jobs={},
        settings=world.settings,
        provisioning=world.provisioning,
        silent_zones=frozenset({"us-west4-a", "us-central2-b"}),
    )

    def zone(world: World, turn: int) -> str | None:
        place = next_place(world, runner("tpu-v5litepod-16"), 2, turn)
        return place.zone if place else None

    assert [zone(world, turn) for turn in range(3)] == ["us-west4-a", "us-central1-a", "us-west4-a"]
    assert [zone(quiet, turn) for turn in range(3)] == ["us-central1-a"] * 3
    assert next_place(quiet, runner("tpu-v4-16"), 0, 0) is None
    assert next_place(World(jobs={}, settings=world.settings, provisioning=None), runner("tpu-v4-16"), 0, 0) is None


def test_the_reference_has_every_key_every_finder_and_an_example_that_is_valid() -> None:
    text = PAGE.read_text("utf-8")
    assert [key for key in daemon_settings.known_keys() if f"| `{key.rpartition('.')[2]}` |" not in text] == []
    commands = [command.partition(" --project")[0] for command in FINDERS.values()]
    assert [command for command in commands if f"`{command}" not in text] == []
    examples = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert [load(example.encode()).project for example in examples] == ["my-project"] * 2
    assert load(examples[0].encode()).warnings == ()
