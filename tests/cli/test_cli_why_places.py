"""`bastion why` of jobs in clusters: what the platform says of a gang that waits, and jobs held for their image."""

from __future__ import annotations

import json
import re

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.model.gangs import GangState
from bastion.core.status import packing

_CLUSTER = b"""
[clusters.training]
uid = "5f0c1a2b-1111-2222-3333-444455556666"
[types.v4]
zones = ["k8s:training"]
[[tiers]]
model = "on-demand"
"""
_IMAGE = "\n[types.v4.pod]\nimage = 'train:v1'\n"
_CLOUD = b"""
project = "p"
[types.v4]
zones = ["us-central2-b"]
service_account = "w@p"
[[tiers]]
model = "on-demand"
"""
_BOTH = b"project = 'p'\n" + _CLUSTER.replace(
    b'["k8s:training"]', b'["k8s:training", "us-central2-b"]\nservice_account = "w@p"'
)
_FOUR_HOSTS = "tpu-v4-32"


def wait(bastion, message: str = "", *, partial: bool = False) -> None:
    """Submit a job whose gang waits in the cluster, and let the daemon see it."""
    bastion.slices.waits["k8s:training"] = "Unschedulable"
    bastion.submit("job", instance_type=_FOUR_HOSTS)
    bastion.run_until(lambda: bastion.slices.created)
    say(bastion, message, partial=partial)


def say(bastion, message: str = "", *, partial: bool = False) -> None:
    name = bastion.slices.created[-1].ref.name
    bastion.slices.put_into(name, GangState.WAITING, waiting="Unschedulable", waiting_message=message, partial=partial)
    bastion.settle(2)


def in_a_cluster(bastion) -> None:
    bastion.write_settings(_CLUSTER + _IMAGE.encode())
    bastion.settle(2)


def test_a_gang_that_waits_shows_the_platforms_state_and_words(run, bastion) -> None:
    in_a_cluster(bastion)
    wait(bastion, "0/4 nodes are available: 4 Insufficient google.com/tpu")
    bastion.clock.advance(300)
    shown = run("why", "job").out
    assert re.search(r"^job is provisioning: Unschedulable for 5m in cluster training$", shown, re.MULTILINE)
    assert (
        "\n  cluster training says: 0/4 nodes are available: 4 Insufficient google.com/tpu\n"
        f"  if the cluster has no node pool for {_FOUR_HOSTS}: add one, or submit the job with another type\n"
    ) in shown
    since = bastion.record("job").attempt.waiting.since
    waiting = json.loads(run("why", "job", "--output=json").out)["job"]["waiting"]
    assert (waiting["zone"], waiting["message"]) == (
        "k8s:training",
        "0/4 nodes are available: 4 Insufficient google.com/tpu",
    )
    assert packing.read(bastion.store.get(keys.STATUS).data).entries["job"].waiting.since == since
    assert "half placed" not in shown


def test_new_words_are_shown_and_no_words_are_in_the_state_of_the_job(run, bastion) -> None:
    in_a_cluster(bastion)
    wait(bastion, "first words")
    assert "says: first words" in run("why", "job").out
    generation = bastion.store.head(keys.state("job")).generation
    say(bastion, "other words")
    assert "says: other words" in run("why", "job").out
    assert bastion.store.head(keys.state("job")).generation == generation
    assert b"words" not in bastion.store.get(keys.state("job")).data
    say(bastion)
    assert "says:" not in run("why", "job").out
    waiting = next(each for each in bastion.json(keys.STATUS)["jobs"] if each["name"] == "job")["waiting"]
    assert set(waiting) == {"state", "zone", "since"}


def test_words_are_one_plain_line_of_bounded_length(run, bastion) -> None:
    in_a_cluster(bastion)
    wait(bastion, "bad\x1b[2J\nwords " + "x" * 5000)
    waiting = packing.read(bastion.store.get(keys.STATUS).data).entries["job"].waiting
    assert waiting.message.startswith(r"bad\x1b[2J words xxx")
    assert len(waiting.message) == limits.MESSAGE_MAX_CHARS
    assert r"says: bad\x1b[2J words xxx" in run("why", "job").out


def test_a_half_placed_gang_says_so_and_since_when(run, bastion) -> None:
    in_a_cluster(bastion)
    wait(bastion)
    bastion.clock.advance(120)
    say(bastion, partial=True)
    since = bastion.json(keys.STATUS)["jobs"][0]["waiting"]["partial_since"]
    bastion.clock.advance(60)
    shown = run("why", "job").out
    assert f"  half placed for 1m (since {since}): some of its hosts have machines" in shown
    assert "Unschedulable for 3m in cluster training" in shown
    say(bastion, partial=False)
    assert "half placed" not in run("why", "job").out


def test_a_gang_that_stays_half_placed_gives_its_machines_back_and_says_where(run, bastion) -> None:
    in_a_cluster(bastion)
    wait(bastion, partial=True)
    bastion.clock.advance(limits.ZONE_WAIT_SECONDS)
    bastion.run_until(lambda: bastion.record("job").attempts)
    shown = run("why", "job").out
    assert "attempt 1 in cluster training ended" in shown
    assert "Unschedulable in cluster training: only some of its hosts had machines for 15m; giving them back" in shown


def test_the_history_names_the_cluster_and_that_another_place_is_tried(run, bastion) -> None:
    bastion.write_settings(_BOTH + _IMAGE.encode())
    bastion.settle(2)
    wait(bastion)
    bastion.clock.advance(limits.ZONE_WAIT_SECONDS)
    bastion.run_until(lambda: len(bastion.slices.created) == 2)
    history = run("history", "job").out
    assert f"attempt 1 is starting: {_FOUR_HOSTS} in cluster training\n" in history
    assert "attempt 1 is waiting for capacity in cluster training: Unschedulable\n" in history
    assert "Unschedulable in cluster training for 15m; trying another place" in history
    assert f"attempt 2 is starting: {_FOUR_HOSTS} in us-central2-b\n" in history


def test_a_cluster_that_does_not_answer_is_named_in_the_alarm(run, bastion) -> None:
    in_a_cluster(bastion)
    bastion.submit("job", instance_type=_FOUR_HOSTS)
    bastion.slices.down = True  # the listing fails
    for _ in range(2):
        bastion.daemon.tick()
    shown = run("why", "job").out
    assert "alarm: cannot list slices in cluster training: the provisioning API does not" in shown
    assert "Held: no answer from cluster training; see the alarms" in shown
    assert "estimated start: unknown: not waiting for capacity (Held)" in shown
    bastion.slices.down = False
    bastion.run_until(lambda: bastion.slices.created)


def test_a_running_job_whose_place_is_silent_is_not_said_to_have_a_bad_spec(run, bastion) -> None:
    wait(bastion)
    bastion.slices.down = True
    bastion.daemon.tick()
    row = next(line for line in run("list").out.splitlines() if line.startswith("job "))
    assert "the provisioning API does not" in row
    assert "new spec refused" not in row


def test_a_job_with_an_image_and_no_cluster_is_held_and_says_so(run, bastion) -> None:
    bastion.write_settings(_CLOUD)
    bastion.settle(2)
    run("launch", "--name=job", f"--instance_type={_FOUR_HOSTS}", "--image=train:v1", "--", "true", code=0)
    bastion.settle(2)
    shown = run("why", "job").out
    assert "Held: its image needs a Kubernetes cluster, and config/daemon.toml has none for v4" in shown
    assert "estimated start: unknown: not waiting for capacity (Held)" in shown
    assert "\n  image train:v1\n" in shown
    bastion.write_settings(_BOTH)
    bastion.run_until(lambda: bastion.slices.created)
    assert (bastion.slices.created[0].ref.zone, bastion.slices.created[0].image) == ("k8s:training", "train:v1")


def test_a_job_without_an_image_where_there_are_only_clusters_is_held_and_says_so(run, bastion) -> None:
    bastion.write_settings(_CLUSTER)
    bastion.settle(2)
    bastion.submit("job", instance_type=_FOUR_HOSTS)
    bastion.settle(2)
    assert (
        "Held: v4 is in Kubernetes clusters only, where a job needs an image; "
        "name one with --image, or set types.v4.pod.image in config/daemon.toml"
    ) in run("why", "job").out
    in_a_cluster(bastion)
    bastion.run_until(lambda: bastion.slices.created)
    assert bastion.slices.created[0].image == "train:v1"


def test_the_labels_of_a_job_reach_its_gang(run, bastion) -> None:
    in_a_cluster(bastion)
    run("launch", "--name=job", f"--instance_type={_FOUR_HOSTS}", "--label=team=vision", "--", "true", code=0)
    bastion.run_until(lambda: bastion.slices.created)
    assert bastion.slices.created[0].user_labels == {"team": "vision"}


_TIERS = b"""
[[tiers]]
model = "on-demand"
zones = ["us-central2-b"]
[[tiers]]
model = "spot"
zones = ["k8s:training"]
"""


def test_a_job_with_an_image_whose_tier_is_not_in_a_cluster_says_so(run, bastion) -> None:
    bastion.write_settings(_BOTH.partition(b"[[tiers]]")[0] + _TIERS)
    bastion.settle(2)
    run("launch", "--name=job", f"--instance_type={_FOUR_HOSTS}", "--image=train:v1", "--", "true", code=0)
    bastion.settle(3)
    shown = run("why", "job").out
    assert "Held: config/daemon.toml has no zone of v4 in tier 0 that is a Kubernetes cluster, which its image" in shown
    assert not bastion.slices.created


def test_a_gang_that_does_not_go_says_what_it_waits_for(run, bastion) -> None:
    in_a_cluster(bastion)
    bastion.submit("job", instance_type=_FOUR_HOSTS)
    bastion.run_until(lambda: bastion.slices.created)
    bastion.slices.delete_seconds = 1000.0
    bastion.slices.lose(bastion.slices.created[-1].ref.name, "waiting for the end of a pod on a node")
    bastion.run_until(lambda: bastion.slices.deleted)
    bastion.settle(2)
    assert "\n  waiting for the end of a pod on a node\n" in run("why", "job").out
