"""Clusters in the daemon's settings: their places, pods, volumes and queues."""

from __future__ import annotations

import pytest

from bastion.core.model.clusters import ClusterSettings
from bastion.core.model.daemon_settings import SettingsError, load
from bastion.core.model.gangs import CapacityModel
from bastion.core.model.instance_types import lookup
from bastion.core.model.job_spec import Runner
from bastion.core.model.pods import PodSettings, Toleration, Volume
from bastion.core.model.provisioning import BUILT_IN, places_of, why_not_in_tier, why_not_placed
from bastion.core.model.secrets import PodSecret
from tests.support.daemon_settings_files import GOOD, problems, runner
from tests.support.job_specs import new_spec

EKS = """
[clusters.east]
provider = "eks"
uid = "5f0c0000-0000-0000-0000-000000000000"

[types.h100]
zones = ["k8s:east"]

[types.h100.pod]
image = "registry.example/train:v1"

[[tiers]]
model = "on-demand"
"""


def test_a_type_that_a_provider_does_not_have_is_a_problem() -> None:
    with pytest.raises(SettingsError) as refusal:
        load(EKS.replace("h100", "l4").encode())
    assert "types.l4.zones: EKS has no l4, only a100, a100-80gb, b200, h100, h200; use another place" in str(
        refusal.value
    )


def test_defaults_give_a_cluster_the_types_that_its_provider_has() -> None:
    settings = load(EKS.replace("[types.h100]", "[defaults]").replace("[types.h100.pod]", "[defaults.pod]").encode())
    assert set(settings.resource_types) == {"a100", "a100-80gb", "b200", "h100", "h200"}


def test_a_job_is_held_if_no_place_has_machines_of_its_size() -> None:
    settings = load(EKS.encode())
    assert why_not_placed(settings, runner("gpu-h100-8")) == ""
    assert settings.places(runner("gpu-h100-2").instance_type, 0) == ()
    assert why_not_placed(settings, runner("gpu-h100-2")).startswith(
        "no place of h100 in config/daemon.toml (k8s:east) has gpu-h100-2; `bastion instance-types h100` shows"
    )


CLUSTERS = """
[clusters.training]
provider = "gke"
server = "https://10.0.0.2"
uid = "5f0c0000-0000-0000-0000-000000000000"
namespace = "training"
service_account = "bastion-worker"

[defaults.pod]
cpu = "100"
image = "registry.example/train:v1"

[types.v5p]
zones = ["k8s:training"]

[types.v5p.pod]
memory = "300Gi"
resources = { "vpc.amazonaws.com/efa" = "4" }
tolerations = [{ key = "team", operator = "Equal", value = "a" }]
volumes = [{ path = "/data", claim = "data" }, { path = "/models", bucket = "models", read_only = true }]

[[tiers]]
model = "flex-start"
"""
IN_BOTH = CLUSTERS.replace('["k8s:training"]', '["us-east5-a", "k8s:training"]\nservice_account = "a"')


def test_a_bastion_with_clusters_alone_needs_no_project_and_a_type_has_its_pods_settings() -> None:
    settings = load(CLUSTERS.encode())
    assert settings.clusters["training"] == ClusterSettings(
        name="training",
        provider="gke",
        server="https://10.0.0.2",
        uid="5f0c0000-0000-0000-0000-000000000000",
        namespace="training",
        service_account="bastion-worker",
    )
    (place,) = settings.places(lookup("tpu-v5p-16"), 0)
    assert (place.zone, place.model, settings.warnings) == ("k8s:training", CapacityModel.FLEX_START, ())
    assert place.pod == PodSettings(
        image="registry.example/train:v1",
        cpu="100",
        memory="300Gi",
        resources={"vpc.amazonaws.com/efa": "4"},
        tolerations=(Toleration(key="team", operator="Equal", value="a"),),
        volumes=(Volume(path="/data", claim="data"), Volume(path="/models", bucket="models", read_only=True)),
    )


def test_a_job_with_an_image_goes_to_clusters_only_and_one_without_to_places_that_need_none() -> None:
    both = load(f'project = "p"\n{IN_BOTH}'.encode())
    v5p = lookup("tpu-v5p-16")
    assert [(p.zone, p.pod is None) for p in both.places(v5p, 0)] == [("us-east5-a", True), ("k8s:training", False)]
    assert [p.zone for p in both.places(v5p, 0, has_image=True)] == ["k8s:training"]
    without = load(f'project = "p"\n{IN_BOTH}'.replace('image = "registry.example/train:v1"', "").encode())
    assert [p.zone for p in without.places(v5p, 0)] == ["us-east5-a"]


def test_a_job_is_held_that_has_an_image_and_no_cluster_or_a_cluster_and_no_image() -> None:
    with_image = new_spec(command="x", instance_type="tpu-v4-16", image="a/b").runner
    assert "its image needs a Kubernetes cluster" in why_not_placed(load(GOOD.encode()), with_image)
    imageless = load(CLUSTERS.replace('image = "registry.example/train:v1"', "").encode())
    assert "name one with --image, or set types.v5p.pod.image" in why_not_placed(imageless, runner("tpu-v5p-16"))
    assert why_not_placed(load(CLUSTERS.encode()), runner("tpu-v5p-16")) == ""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("k8s:training", "k8s:trianing", "there is no cluster trianing; did you mean k8s:training?"),
        ("k8s:training", "k8s:b", "names k8s:b, but there is no cluster b; add a table [clusters.b]"),
        ("k8s:training", "us-east5-a", "project is missing"),
        ("[types.v5p]", '[types.v2]\nzones = ["k8s:training"]\n[types.v5p]', "Kubernetes has no v2; use a zone of"),
        ("uid = ", "# uid = ", "clusters.training.uid is missing; find it with: kubectl get namespace"),
        ("namespace = ", "namespaze = ", "clusters.training.namespaze is not a valid key; did you mean namespace?"),
        ("server = ", 'kubeconfig = "/k"\nserver = ', "clusters.training has both server and kubeconfig; remove one"),
        ("server = ", 'workload_identity_provider = "pool"\nserver = ', "workload_identity_provider is not valid"),
        ('"300Gi"', '"300 gigs"', "types.v5p.pod.memory is not valid"),
        ("memory = ", "memroy = ", "types.v5p.pod.memroy is not a valid key; did you mean memory?"),
        ('claim = "data"', "read_only = true", "types.v5p.pod.volumes[0] must have one of claim, bucket, secret and"),
        ('claim = "data"', 'claim = "data", secret = "s"', "types.v5p.pod.volumes[0] must have one of claim, bucket"),
        ("memory = ", 'secrets = { A = "plain text" }\nmemory = ', "types.v5p.pod.secrets.A is not valid"),
        ("memory = ", 'secrets = { BASTION_A = "s/k" }\nmemory = ', "BASTION_A must be the name of a variable"),
        ('claim = "data"', 'claim = "data", host_path = "/mnt"', "must have one of claim, bucket, secret"),
        ('claim = "data"', 'host_path = "mnt"', "types.v5p.pod.volumes[0].host_path is not valid"),
        ("[types.v5p.pod]", 'input_cache = "cache"\n[types.v5p.pod]', "types.v5p.input_cache is not valid"),
        ("[types.v5p.pod]", 'input_cache = "/cache"\n[types.v5p.pod]', "types.v5p.input_cache is /cache, but no"),
        ("[types.v5p.pod]", 'input_cache = "/models/x"\n[types.v5p.pod]', "with a claim or a host_path is there"),
        ("[types.v5p.pod]", "input_cache_gib = 0\n[types.v5p.pod]", "types.v5p.input_cache_gib is not valid"),
        ('claim = "data"', 'claim = "Data"', "types.v5p.pod.volumes[0].claim is not valid"),
        ('"/data"', '"/models"', "types.v5p.pod.volumes must not name the path /models twice"),
        ('"/data"', '"/bastion/state/"', "types.v5p.pod.volumes[0].path must not be /dev/shm, nor /bastion"),
        ('"/data"', '"/dev/shm/"', "types.v5p.pod.volumes[0].path must not be /dev/shm, nor /bastion"),
        ('"/data"', '"/data/../bastion"', "types.v5p.pod.volumes[0].path must be an absolute path below /"),
        ('"/data"', '"//"', "types.v5p.pod.volumes[0].path must be an absolute path below /"),
        ("train:v1", "train v1", "defaults.pod.image must be a container image such as"),
        ("vpc.amazonaws.com/efa", "memory", "types.v5p.pod.resources.memory must be extended resources; use the key"),
        ("vpc.amazonaws.com/efa", "google.com/tpu", "must not have google.com/tpu, which follows from the instance"),
        ('"Equal"', '"Exists"', 'types.v5p.pod.tolerations[0] must have operator = "Equal", since it has a value'),
        ('"bastion-worker"', '"B"', "clusters.training.service_account is not valid"),
        ('key = "team", ', "", "types.v5p.pod.tolerations[0].key is missing"),
    ],
)  # fmt: skip
def test_a_wrong_value_of_a_cluster_or_its_pods_is_told(old: str, new: str, words: str) -> None:
    assert any(words in problem for problem in problems(CLUSTERS.replace(old, new, 1)))


def test_a_cache_of_inputs_is_in_a_volume_of_the_pods_or_on_the_hosts_disk() -> None:
    text = CLUSTERS.replace("[types.v5p.pod]", 'input_cache = "/data/inputs"\ninput_cache_gib = 7\n[types.v5p.pod]')
    (place,) = load(text.encode()).places(lookup("tpu-v5p-16"), 0)
    assert (place.input_cache, place.input_cache_bytes) == ("/data/inputs", 7 * 2**30)
    on_node = text.replace('claim = "data"', 'host_path = "/mnt/ssd"')
    (place,) = load(on_node.encode()).places(lookup("tpu-v5p-16"), 0)
    assert place.pod is not None
    assert (place.pod.volumes[0].host_path, place.input_cache) == ("/mnt/ssd", "/data/inputs")
    on_vm = GOOD.replace("[defaults]", '[defaults]\ninput_cache = "/mnt/cache"', 1)
    places = load(on_vm.encode()).places(lookup("tpu-v4-8"), 0)
    assert {(each.input_cache, each.input_cache_bytes) for each in places} == {("/mnt/cache", 100 * 2**30)}
    assert {each.input_cache_bytes for each in load(GOOD.encode()).places(lookup("tpu-v4-8"), 0)} == {0}


def test_a_type_of_clusters_alone_is_refused_in_a_zone_of_cloud_tpu() -> None:
    text = GOOD.replace("[types.v4]", '[types.tpu7x]\nservice_account = ""', 1)
    assert any("Cloud TPU has no tpu7x; use a cluster (k8s:NAME) instead of" in problem for problem in problems(text))


def test_a_job_is_held_only_if_no_tier_has_a_place_for_it() -> None:
    """Tier 0 is a reservation in a zone of Cloud TPU, tier 1 spot capacity in a cluster, where an image is needed."""
    tiers = """
[[tiers]]
model = "reserved"
reservation = { v5p = "ours" }
zones = { v5p = ["us-east5-a"] }

[[tiers]]
model = "spot"
zones = { v5p = ["k8s:training"] }
"""
    base = IN_BOTH.partition("[[tiers]]")[0]
    settings = load(f'project = "p"\n{base}{tiers}'.replace('image = "registry.example/train:v1"', "").encode())
    with_image = new_spec(command="x", instance_type="tpu-v5p-16", image="a/b").runner
    assert with_image is not None
    assert why_not_placed(settings, with_image) == why_not_placed(settings, runner("tpu-v5p-16")) == ""
    assert "in tier 0 that is a Kubernetes cluster, which its image needs" in why_not_in_tier(settings, with_image, 0)
    assert why_not_in_tier(settings, with_image, 1) == why_not_in_tier(settings, runner("tpu-v5p-16"), 0) == ""
    assert "in tier 1 that is a place that needs no image" in why_not_in_tier(settings, runner("tpu-v5p-16"), 1)
    one = load(f'project = "p"\n{base}{tiers.replace("k8s:training", "us-east5-a")}'.encode())
    assert "its image needs a Kubernetes cluster" in why_not_placed(one, with_image)


KUEUE = CLUSTERS.replace("uid = ", 'queue = "bastion-{project}"\nuid = ', 1)
SECOND = """
[clusters.second]
uid = "5f0c0000-0000-0000-0000-000000000001"
"""


def test_where_kueue_decides_tiers_do_not_count_and_all_places_are_tried_in_order() -> None:
    text = KUEUE.replace('["k8s:training"]', '["k8s:training", "k8s:second"]') + SECOND + 'queue = "all"\n'
    settings = load(text.replace("[[tiers]]", '[[tiers]]\nmodel = "spot"\n[[tiers]]').encode())
    v5p = lookup("tpu-v5p-16")
    assert settings.delegated == ("v5p",)
    for tier in (None, 0, 1):
        places = [(p.zone, p.queue, p.model) for p in settings.places(v5p, tier)]
        assert places == [
            ("k8s:training", "bastion-{project}", CapacityModel.ON_DEMAND),
            ("k8s:second", "all", CapacityModel.ON_DEMAND),
        ]
    assert [place.queue for place in load(CLUSTERS.encode()).places(v5p, 0)] == [""]
    assert load(CLUSTERS.encode()).delegated == BUILT_IN.delegated == ()


MIXED = "mixes two modes: Kueue decides in cluster training, which has a queue, and the scheduler decides in"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            KUEUE.replace('["k8s:training"]', '["k8s:training", "k8s:second"]') + SECOND,
            f"types.v5p.zones: v5p {MIXED} cluster second; give the type places with a queue only",
        ),
        (
            'project = "p"\n'
            + KUEUE.replace('["k8s:training"]', '["us-east5-a", "k8s:training"]\nservice_account = "a"'),
            f"types.v5p.zones: v5p {MIXED} us-east5-a",
        ),
        (
            KUEUE.replace('[types.v5p]\nzones = ["k8s:training"]', "")
            .replace("[defaults.pod]", '[defaults]\nzones = ["k8s:training", "k8s:second"]\n[defaults.pod]') + SECOND,
            f"defaults.zones: a100 {MIXED} cluster second",
        ),
        (
            KUEUE.replace('"flex-start"', '"flex-start"\nzones = { v5p = ["k8s:second"] }') + SECOND,
            f"tiers[0].zones: v5p {MIXED} cluster second",
        ),
        (
            KUEUE.replace('["k8s:training"]', '["k8s:second"]')
            .replace('"flex-start"', '"flex-start"\nzones = ["k8s:training"]') + SECOND,
            f"tiers[0].zones: v5p {MIXED} cluster second",
        ),
        (KUEUE.replace("bastion-{project}", "Bastion"), "clusters.training.queue is not valid"),
        (KUEUE.replace("bastion-{project}", "-{project}"), "clusters.training.queue is not valid"),
    ],
    ids=["two clusters", "a zone of Cloud TPU", "the defaults", "a tier for the type", "a tier", "a name", "a start"],
)  # fmt: skip
def test_a_type_has_one_mode(text: str, told: str) -> None:
    (problem,) = problems(text)
    assert told in problem
    assert problem.startswith("line ")


def test_a_tiers_zones_for_all_types_do_not_concern_a_type_that_kueue_decides_on() -> None:
    text = KUEUE.replace('"flex-start"', '"flex-start"\nzones = ["k8s:second"]') + SECOND
    assert load(text.encode()).delegated == ("v5p",)


def _with(instance_type: str, secrets: dict[str, str]) -> Runner:
    found = new_spec("j", instance_type=instance_type, secrets=secrets).runner
    assert found is not None
    return found


def test_a_job_with_a_secret_of_the_cluster_goes_to_clusters_that_give_it() -> None:
    given = IN_BOTH.replace('namespace = "training"', 'namespace = "training"\njob_secrets = ["wandb", "hub"]')
    settings = load(f'project = "p"\n{given}'.encode())
    job = _with("tpu-v5p-16", {"A": "k8s:secret/wandb/key", "B": "k8s:secret/hub/a", "C": "file:/c"})
    assert job.pod_secrets == (PodSecret(name="hub", key="a"), PodSecret(name="wandb", key="key"))
    assert (why_not_placed(settings, job), why_not_in_tier(settings, job, 0)) == ("", "")
    assert [place.zone for place in places_of(settings, job, 0)] == ["k8s:training"]
    assert [place.zone for place in places_of(settings, _with("tpu-v5p-16", {"C": "file:/c"}), 0)] == [
        "us-east5-a",
        "k8s:training",
    ]


def test_a_secret_that_no_place_gives_is_held_with_what_to_do() -> None:
    job = _with("tpu-v5p-16", {"A": "k8s:secret/wandb/key"})
    assert why_not_placed(load(CLUSTERS.encode()), job) == (
        "no cluster of v5p gives jobs the Secret wandb; an operator may name it in clusters.training.job_secrets of "
        "config/daemon.toml"
    )
    on_vms = _with("tpu-v4-16", {"A": "k8s:secret/wandb/key"})
    assert (
        why_not_placed(load(GOOD.encode()), on_vms)
        == why_not_placed(BUILT_IN, on_vms)
        == (
            "its secret k8s:secret/wandb/key needs a Kubernetes cluster, and config/daemon.toml has none for v4; use "
            "another source, such as sm://PROJECT/SECRET"
        )
    )
    imageless = IN_BOTH.replace('image = "registry.example/train:v1"', "")
    imageless = imageless.replace('namespace = "training"', 'job_secrets = ["wandb"]')
    said = why_not_placed(load(f'project = "p"\n{imageless}'.encode()), job)
    assert "it needs an image; name one with --image" in said
