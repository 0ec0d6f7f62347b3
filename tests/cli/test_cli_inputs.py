"""What `why` and `list` show while hosts fetch inputs."""

from __future__ import annotations

from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import HostPhase, Report
from bastion.testing.scripted_hosts import runs_for

_GIB = 2**30


def _report(bastion, host: int, fetched: int | None, message: str = "") -> None:
    run = bastion.attempt("job")
    key = keys.report(run, host)
    stored = bastion.store.get(key)
    found = protocol.read(Report, stored.data)
    total = None if fetched is None else 12 * _GIB
    changes = {"phase": HostPhase.PREPARING, "fetched_bytes": fetched, "input_bytes": total, "message": message}
    report = found.model_copy(update={**changes, "sequence": found.sequence + 1})
    signed = protocol.sign(report, bastion.run_keys.drawn(str(run)))
    bastion.store.put(key, signed.to_bytes(), generation=stored.meta.generation)


def test_why_and_list_show_the_host_that_has_most_of_its_inputs_to_fetch(run, bastion) -> None:
    bastion.hosts.stuck |= {("job", 0), ("job", 1)}
    flags = ("--instance_type=tpu-v4-16", "--input=gs://data/tokens", "--name=job")
    assert run("launch", *flags, "--", "true").code == 0
    bastion.settle(3)
    assert "provisioning 2/2 hosts" in run("why", "job", code=0).out
    _report(bastion, 0, 11 * _GIB)
    _report(bastion, 1, int(3.1 * _GIB))
    bastion.settle(2)
    for command in (("why", "job"), ("list",)):
        assert "fetching inputs: 3.1 of 12.0 GiB" in run(*command, code=0).out
    _report(bastion, 1, None)
    bastion.settle(2)
    assert "fetching inputs: 11.0 of 12.0 GiB" in run("why", "job", code=0).out
    _report(bastion, 0, None)
    bastion.settle(2)
    assert "provisioning 2/2 hosts" in run("why", "job", code=0).out


def test_why_shows_what_a_host_waits_for(run, bastion) -> None:
    bastion.hosts.stuck |= {("job", 0), ("job", 1)}
    flags = ("--instance_type=tpu-v4-16", "--input=gs://data/tokens", "--name=job")
    assert run("launch", *flags, "--", "true").code == 0
    bastion.settle(3)
    _report(bastion, 1, None, "waiting for an answer: s3://data could not be listed")
    bastion.settle(2)
    said = "provisioning 2/2 hosts: worker 1 is waiting for an answer: s3://data could not be listed"
    assert said in run("why", "job", code=0).out
    _report(bastion, 1, int(3.1 * _GIB), "waiting for an answer: s3://data could not be read")
    bastion.settle(2)
    said = "fetching inputs: 3.1 of 12.0 GiB: worker 1 is waiting for an answer: s3://data could not be read"
    assert said in run("list", code=0).out or said in run("why", "job", code=0).out


def test_hosts_that_have_passed_the_gate_fetch_their_inputs(run, bastion) -> None:
    flags = ("--instance_type=tpu-v4-16", "--input=gs://data/tokens", "--name=job")
    bastion.hosts.scripts["job"] = runs_for(1000)
    assert run("launch", *flags, "--", "true").code == 0
    bastion.settle(5)
    assert "running on 2 hosts" in run("why", "job", code=0).out
    _report(bastion, 1, int(3.1 * _GIB))
    bastion.settle(2)
    for command in (("why", "job"), ("list",)):
        assert "fetching inputs: 3.1 of 12.0 GiB" in run(*command, code=0).out
    _report(bastion, 1, None, "waiting for an answer: s3://data could not be listed")
    bastion.settle(2)
    assert "running on 2 hosts: worker 1 is waiting for an answer: s3://data" in run("why", "job", code=0).out
