"""What follows from an attempt: its gang, its hosts' arguments and its order."""

from __future__ import annotations

from dataclasses import replace

from bastion.core.bucket import protocol
from bastion.core.bucket.protocol import AgentArguments
from bastion.core.model.gangs import GangRef, Place
from bastion.core.model.job_record import Attempt, JobRecord
from bastion.core.model.world import Installation
from bastion.core.reconcile.runs import RunPlan, plan_attempt
from bastion.core.run_keys import RunKeys
from tests.support.job_specs import new_spec

SETTINGS = Installation(root="/b/b-bastion", bastion="b-bastion", host_identity="h", run_keys=RunKeys(b"r" * 32))


def plan(*, place: Place | None = None, instance_type: str = "tpu-v4-16", cleanup: bool = False) -> RunPlan:
    spec = new_spec(
        instance_type=instance_type,
        num_replicas=2 if instance_type else 1,
        max_tries=3,
        setup="make",
        output_dir="out",
        code_asset_path="gs://b/c.tar",
        cleanup_command="false",
        proxy="lake:projects/p/locations/global/keyRings/r/cryptoKeys/k",
        stuck_after_seconds=60 if instance_type else None,
        secrets={"A": "file:/a"} if instance_type else None,
    )
    record = JobRecord(name="job", uid="aaaaaaaaaa", generation=1, job=spec, queued_at=1.0)
    attempt = Attempt(number=0 if cleanup else 1, token="t", started_at=2.0, place=place, agent="abc", try_number=2)
    return plan_attempt(record, attempt, SETTINGS)


def test_a_run_is_one_gang_whose_place_is_the_stored_one() -> None:
    place = Place(zone="us-central2-b", network="n", runtime_version="special")
    request = plan(place=place).create().request
    assert request.ref == GangRef(name="b-aaaaaaaaaa-1", zone="us-central2-b", num_slices=2)
    assert request.place == place


def test_without_a_place_a_gang_is_in_the_provisioners_own_zone_with_its_types_runtime() -> None:
    request = plan().create().request
    assert (request.ref.zone, request.place) == ("", Place(runtime_version="tpu-ubuntu2204-base"))


def test_all_hosts_of_a_gang_get_the_same_arguments_and_none_is_told_its_slice() -> None:
    arguments = protocol.read(AgentArguments, plan().create().request.agent_arguments.encode())
    assert (arguments.slice_index, arguments.num_slices, arguments.hosts_per_slice) == (None, 2, 2)
    assert arguments.agent == "abc"
    assert [plan().node_of(host) for host in range(4)] == ["b-aaaaaaaaaa-1-0"] * 2 + ["b-aaaaaaaaaa-1-1"] * 2


def test_an_order_carries_what_the_spec_says_of_its_command() -> None:
    order = plan().order()
    assert (order.try_number, order.max_tries, order.setup, order.code) == (2, 3, "make", "gs://b/c.tar")
    assert (order.output_dir, order.output_sync) == ("out", "each")
    assert order.proxy == "lake:projects/p/locations/global/keyRings/r/cryptoKeys/k"
    assert (order.stuck_after_seconds, order.secrets, order.dump_stacks) == (60, {"A": "file:/a"}, False)


def test_commands_of_slices_run_as_the_hosts_user_and_others_as_their_provisioner_says() -> None:
    settings = replace(SETTINGS, host_job_user="bastion-job")

    def job_user(each: RunPlan) -> str:
        request = replace(each, settings=settings).create().request
        return protocol.read(AgentArguments, request.agent_arguments.encode()).job_user

    assert [job_user(plan()), job_user(plan(instance_type="")), job_user(plan(cleanup=True))] == ["bastion-job", "", ""]
    assert not plan().order().root


def test_a_cleanup_command_is_one_host_of_the_bastion_without_any_of_it() -> None:
    cleanup = plan(cleanup=True)
    assert cleanup.ref == GangRef(name="b-aaaaaaaaaa-cleanup")
    order = cleanup.order()
    assert (order.command, order.max_tries, order.setup, order.code, order.output_dir) == ("false", 1, "", "", "")
    assert order.proxy == ""
    assert (order.stuck_after_seconds, order.secrets) == (0, {})


def test_the_digest_of_a_bundle_is_ordered_with_it_and_on_the_bastion_nothing_is_set_up() -> None:
    digest = "0123456789abcdef" * 4
    url = f"gs://b/b-bastion/bundles/{digest}.tar.gz"
    spec = new_spec(code_asset_path=url)
    record = JobRecord(name="job", uid="aaaaaaaaaa", generation=1, job=spec, queued_at=1.0)
    order = plan_attempt(record, Attempt(number=1, token="t", started_at=2.0), SETTINGS).order()
    assert (order.code, order.code_sha256, order.setup) == (url, digest, "")
