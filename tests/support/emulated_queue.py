"""The emulator with its queue, started as often as a test likes, and what tests ask of it."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from google.cloud import tpu_v2
from google.longrunning import operations_pb2

from bastion.adapters.tpu.provisioner import CloudTpuSettings, make_client
from bastion.emulators.tpu.server import Emulator, EmulatorSettings
from tests.support.waiting import until

ZONE = "projects/a-project/locations/us-central2-b"
LABELS = {"bastion-managed": "team"}
State = tpu_v2.QueuedResourceState.State
NodeState = tpu_v2.Node.State
PATIENCE_SECONDS = 20.0


class Service:
    """One emulator that is started anew as often as a test likes, and a client of it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._settings = EmulatorSettings(
            **{"state_dir": folder, "boot": False, "grace_seconds": 0.0, "watch_seconds": 0.05, **settings}
        )
        self.open()

    def open(self) -> None:
        self.emulator = Emulator(self._settings)
        address = self.emulator.open()
        self.client = make_client(
            CloudTpuSettings(
                project="a-project",
                zone="us-central2-b",
                bastion="a-bastion",
                startup_script="",
                endpoint=address.endpoint,
                token=address.token,
            )
        )

    def crash(self) -> None:
        """Ends it as a kill would, as far as the state on disk goes: nothing is deleted, nothing more is written."""
        self.client.transport.close()
        self.emulator._server.stop(grace=None).wait()
        for work in list(self.emulator.fleet._work.values()):
            work.stop.set()
        self.emulator.fleet._closed.set()
        self.emulator.fleet.ledger.changed.set()
        self.emulator.fleet._watcher.join()
        self.emulator._address = None
        self.emulator.close()

    def close(self) -> None:
        self.client.transport.close()
        self.emulator.close()

    # ---- calls

    def create(self, queued_id: str = "q", parent: str = ZONE, **fields: Any) -> Any:
        queued = fields["queued"] if "queued" in fields else asked(parent=parent, **fields)
        return self.client.create_queued_resource(
            parent=parent, queued_resource_id=queued_id, queued_resource=queued, timeout=PATIENCE_SECONDS
        )

    def create_node(self, node_id: str, accelerator_type: str = "v4-8") -> operations_pb2.Operation:
        node = tpu_v2.Node(accelerator_type=accelerator_type, runtime_version="tpu-ubuntu2204-base")
        return self.client.create_node(parent=ZONE, node_id=node_id, node=node, timeout=PATIENCE_SECONDS).operation

    def get(self, queued_id: str = "q") -> tpu_v2.QueuedResource:
        return self.client.get_queued_resource(name=f"{ZONE}/queuedResources/{queued_id}", timeout=PATIENCE_SECONDS)

    def delete(self, queued_id: str = "q", *, force: bool = False) -> Any:
        request = tpu_v2.DeleteQueuedResourceRequest(name=f"{ZONE}/queuedResources/{queued_id}", force=force)
        return self.client.delete_queued_resource(request, timeout=PATIENCE_SECONDS)

    def reset(self, queued_id: str = "q") -> Any:
        request = tpu_v2.ResetQueuedResourceRequest(name=f"{ZONE}/queuedResources/{queued_id}")
        return self.client.reset_queued_resource(request, timeout=PATIENCE_SECONDS)

    def states(self) -> dict[str, State]:
        return {q.name.rpartition("/")[2]: q.state.state for q in self.client.list_queued_resources(parent=ZONE)}

    def nodes(self) -> dict[str, NodeState]:
        return {node.name.rpartition("/")[2]: node.state for node in self.client.list_nodes(parent=ZONE)}

    def becomes(self, state: State, queued_id: str = "q") -> tpu_v2.QueuedResource:
        until(lambda: self.get(queued_id).state.state is state)
        return self.get(queued_id)

    def done(self, operation: operations_pb2.Operation) -> operations_pb2.Operation:
        request = operations_pb2.GetOperationRequest(name=operation.name)
        until(lambda: self.client.get_operation(request, timeout=PATIENCE_SECONDS).done)
        return self.client.get_operation(request, timeout=PATIENCE_SECONDS)

    def end_notices(self) -> None:
        """Whatever was told of its end is taken now, however long its notice was to be."""
        ledger = self.emulator.fleet.ledger
        with ledger.lock:
            for node in ledger.nodes:
                if node.taken_at is not None:
                    ledger.change_node(node.name, taken_at=time.time())
        ledger.changed.set()

    def events(self) -> list[dict[str, Any]]:
        lines = (self._settings.state_dir / "events.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


def asked(
    node_id: str = "b-x", *, slices: int = 1, accelerator_type: str = "v4-8", parent: str = ZONE, **fields: Any
) -> tpu_v2.QueuedResource:
    """A queued resource that asks for `slices` nodes."""
    spec = tpu_v2.QueuedResource.Tpu.NodeSpec(
        parent=parent,
        node=tpu_v2.Node(
            accelerator_type=accelerator_type,
            runtime_version="tpu-ubuntu2204-base",
            labels=LABELS,
            metadata={"bastion-token": "t", "startup-script": "x" * 5000},
        ),
    )
    if slices > 1:
        spec.multislice_params = tpu_v2.QueuedResource.Tpu.NodeSpec.MultisliceParams(
            node_count=slices, node_id_prefix=node_id
        )
    else:
        spec.node_id = node_id
    return tpu_v2.QueuedResource(tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]), **fields)


def valid_for(seconds: float) -> tpu_v2.QueuedResource.QueueingPolicy:
    moment = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)
    return tpu_v2.QueuedResource.QueueingPolicy(valid_until_time=moment)


def started(folder: Path) -> Iterator[Callable[..., Service]]:
    """What starts emulators on one folder, one after the other; all of them end with the test."""
    made: list[Service] = []

    def service(**settings: Any) -> Service:
        made.append(Service(folder, **settings))
        return made[-1]

    yield service
    for each in made:
        each.close()
