"""TPU slices through the Cloud TPU API v2: the real service, or an emulator on this machine; the client is the same.

Behind the `Provisioner` port. No long-running operation is ever awaited: a creation's operation is remembered by name
and looked at once per `failure`. A daemon that restarted, or whose creation got no answer, does not know the name; then
the operations of the zone are listed, one page per `failure`, until the newest creation of each node is known.

Invariants:

* Every call has a deadline; only reads are repeated, and within the same bound.
* A node without this bastion's label is never listed and never deleted.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import grpc
import tenacity
from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError
from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport
from google.longrunning import operations_pb2

from bastion.adapters.cloud_tpu_words import creation_failure, label_value, slice_state, status_message
from bastion.core.errors import (
    ProvisionerError,
    ProvisionerRefused,
    ProvisionerUnavailable,
    SliceExists,
    Stockout,
)
from bastion.core.slices import SliceRequest, SliceState, SliceStatus

LABEL_BASTION = "bastion-managed"
LABEL_RUN = "bastion-run"
METADATA_TOKEN = "bastion-token"
METADATA_AGENT = "bastion-agent"
_READ_ATTEMPTS = 3
_PAGE_SIZE = 500
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudTpuSettings:
    """Where slices come from.

    Attributes:
        bastion: The bastion's name; becomes the label that makes a node ours.
        endpoint: `host:port` of an emulator; empty for the real service and its default credentials.
        token: The emulator's.
        startup_script: What every host runs at its boot; constant text, the same for all nodes.
        rpc_timeout_seconds: Deadline of one call, and of one read with its repetitions.
        network, subnetwork: Of the nodes; empty for the project's defaults.
        external_ips: Whether hosts get addresses of their own; without, the subnetwork needs Private Google Access.
        service_account: E-mail address the hosts act as; empty for the project's default.
        spot, reserved: The capacity model; neither means on demand.
    """

    project: str
    zone: str
    bastion: str
    startup_script: str
    endpoint: str = ""
    token: str = ""
    rpc_timeout_seconds: float = 10.0
    network: str = ""
    subnetwork: str = ""
    external_ips: bool = True
    service_account: str = ""
    spot: bool = False
    reserved: bool = False

    @property
    def location(self) -> str:
        return f"projects/{self.project}/locations/{self.zone}"

    @property
    def service(self) -> str:
        """The other side, for messages."""
        return f"the local Cloud TPU emulator at {self.endpoint}" if self.endpoint else "the Cloud TPU API"


def make_client(settings: CloudTpuSettings) -> tpu_v2.TpuClient:
    """The unmodified client, connected to the emulator or to the real service.

    Raises:
        ProvisionerRefused: there are no credentials for the real service.
    """
    if not settings.endpoint:
        try:
            return tpu_v2.TpuClient()
        except GoogleAuthError as error:
            raise ProvisionerRefused(
                f"there are no credentials for the Cloud TPU API ({error}); give this VM a service account, or run "
                "'gcloud auth application-default login'"
            ) from error
    channel = grpc.insecure_channel(
        settings.endpoint,
        options=[
            ("grpc.enable_http_proxy", 0),
            # An emulator that was restarted is found again within a second, not within gRPC's two minutes.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 250),
        ],
    )
    return tpu_v2.TpuClient(
        transport=TpuGrpcTransport(channel=grpc.intercept_channel(channel, _BearerToken(settings.token)))
    )


class CloudTpuProvisioner:
    """Behind the `Provisioner` port. Thread-safe.

    Args:
        client: For tests; `make_client(settings)` otherwise.
    """

    def __init__(self, settings: CloudTpuSettings, *, client: tpu_v2.TpuClient | None = None) -> None:
        self._settings = settings
        self._client = client or make_client(settings)
        self._label = label_value(settings.bastion)
        self._creations = _Creations()

    def close(self) -> None:
        """Closes the connection."""
        self._client.transport.close()  # type: ignore[no-untyped-call]

    def create(self, request: SliceRequest) -> None:
        settings = self._settings
        node = tpu_v2.Node(
            accelerator_type=request.accelerator_type,
            runtime_version=request.runtime_version,
            labels={LABEL_BASTION: self._label, LABEL_RUN: label_value(request.run)},
            metadata={
                "startup-script": settings.startup_script,
                METADATA_AGENT: request.agent_arguments,
                METADATA_TOKEN: request.token,
            },
            network_config=tpu_v2.NetworkConfig(
                network=settings.network,
                subnetwork=settings.subnetwork,
                enable_external_ips=settings.external_ips,
            ),
            scheduling_config=tpu_v2.SchedulingConfig(spot=settings.spot, reserved=settings.reserved),
        )
        if settings.service_account:
            node.service_account = tpu_v2.ServiceAccount(email=settings.service_account)
        self._creations.begin(request.node_id)
        try:
            with self._translated(f"creating {request.node_id}"):
                operation = self._client.create_node(
                    tpu_v2.CreateNodeRequest(parent=settings.location, node_id=request.node_id, node=node),
                    timeout=settings.rpc_timeout_seconds,
                )
        except ProvisionerUnavailable as error:
            if isinstance(error.__cause__, exceptions.TooManyRequests):
                # Here it is quota for chips, not for calls: waiting helps unless there is none at all.
                kind = ProvisionerRefused if "Limit: 0" in str(error) else Stockout
                raise kind(str(error)) from error.__cause__
            self._creations.lost(request.node_id)
            raise
        self._creations.accepted(request.node_id, operation.operation.name)

    def failure(self, node_id: str) -> Exception | None:
        """As the port says; at most one call to the API, not repeated.

        Raises:
            ProvisionerUnavailable: the API did not answer.
        """
        creation = self._creations.get(node_id)
        if isinstance(creation, Exception):
            return creation
        if creation is None:
            self._look_for_creations()
            return self._creations.failed(node_id)
        if not creation:
            return None  # it succeeded
        try:
            with self._translated(f"looking at the creation of {node_id}"):
                operation = self._client.get_operation(
                    operations_pb2.GetOperationRequest(name=creation), timeout=self._settings.rpc_timeout_seconds
                )
        except _Missing:
            # The service forgets old operations; whatever came of this one, the node itself tells now.
            self._creations.ended(node_id, creation, None)
            return None
        self._note(node_id, operation)
        return self._creations.failed(node_id)

    def get(self, node_id: str) -> SliceStatus | None:
        node = self._node(node_id)
        return None if node is None else self._status(node)

    def list(self) -> Sequence[SliceStatus]:
        settings = self._settings
        request = tpu_v2.ListNodesRequest(parent=settings.location, page_size=_PAGE_SIZE)
        nodes = self._read(
            f"listing the nodes of {settings.zone}",
            lambda: [*self._client.list_nodes(request, timeout=settings.rpc_timeout_seconds)],
        )
        ours = [self._status(node) for node in nodes if node.labels.get(LABEL_BASTION) == self._label]
        return sorted(ours, key=lambda status: status.node_id)

    def delete(self, node_id: str) -> None:
        """As the port says.

        Raises:
            ProvisionerRefused: the node has not this bastion's label, or we may not.
        """
        node = self._node(node_id)
        if node is None or slice_state(node.state) is SliceState.DELETING:
            return
        if node.labels.get(LABEL_BASTION) != self._label:
            raise ProvisionerRefused(
                f"the node {node_id} has no label {LABEL_BASTION}={self._label}, so it is not this bastion's and is "
                "left alone; rename or delete it by hand if it is in the way"
            )
        with contextlib.suppress(_Missing), self._translated(f"deleting {node_id}"):
            self._client.delete_node(
                tpu_v2.DeleteNodeRequest(name=node.name), timeout=self._settings.rpc_timeout_seconds
            )

    def _node(self, node_id: str) -> tpu_v2.Node | None:
        request = tpu_v2.GetNodeRequest(name=f"{self._settings.location}/nodes/{node_id}")
        try:
            return self._read(
                f"looking at {node_id}",
                lambda: self._client.get_node(request, timeout=self._settings.rpc_timeout_seconds),
            )
        except _Missing:
            return None

    def _status(self, node: tpu_v2.Node) -> SliceStatus:
        ours = node.labels.get(LABEL_BASTION) == self._label
        return SliceStatus(
            node_id=node.name.rpartition("/")[2],
            run=node.labels.get(LABEL_RUN, "") if ours else "",
            token=node.metadata.get(METADATA_TOKEN, "") if ours else "",
            state=slice_state(node.state),
            message=status_message(node),
            labels=dict(node.labels),
        )

    def _look_for_creations(self) -> None:
        """Reads the next page of the zone's operations, if an unknown creation may be among them."""
        page_token = self._creations.search
        if page_token is None:
            return
        request = operations_pb2.ListOperationsRequest(
            name=self._settings.location, page_size=_PAGE_SIZE, page_token=page_token
        )
        with self._translated(f"listing the operations of {self._settings.zone}"):
            page = self._client.list_operations(request, timeout=self._settings.rpc_timeout_seconds)
        for operation in page.operations:
            metadata = tpu_v2.OperationMetadata()
            if operation.metadata.Unpack(tpu_v2.OperationMetadata.pb(metadata)) and metadata.verb == "create":
                node_id = metadata.target.rpartition("/")[2]
                if self._creations.found(node_id, operation.name, metadata.create_time.timestamp()):
                    self._note(node_id, operation)
        self._creations.searched(page_token, page.next_page_token or None)

    def _note(self, node_id: str, operation: operations_pb2.Operation) -> None:
        if operation.done:
            error = operation.error
            failure = creation_failure(error.code, error.message) if error.code else None
            self._creations.ended(node_id, operation.name, failure)

    def _read(self, what: str, call: Callable[[], _T]) -> _T:
        """A read, repeated a few times while the service is out of reach; never for longer than one deadline."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(ProvisionerUnavailable),
            stop=tenacity.stop_after_attempt(_READ_ATTEMPTS)
            | tenacity.stop_after_delay(self._settings.rpc_timeout_seconds),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=1.0),
            reraise=True,
        )

        def translated() -> _T:
            with self._translated(what):
                return call()

        return retrying(translated)

    @contextlib.contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Turns what the client raises into the port's errors, with the API's own words."""
        settings = self._settings
        try:
            yield
        except exceptions.NotFound as error:
            raise _Missing(f"{what}: {error.message}") from error
        except (exceptions.AlreadyExists, exceptions.Aborted) as error:
            if isinstance(error, exceptions.Aborted):
                raise ProvisionerUnavailable(f"{what}: {settings.service} is busy with it: {error.message}") from error
            raise SliceExists(f"{what}: {error.message}") from error
        except (exceptions.Forbidden, exceptions.Unauthorized) as error:
            causes = (
                "its token was refused: the emulator was started anew with another state folder"
                if settings.endpoint
                else f"either the daemon's identity lacks a permission (roles/tpu.admin has them all), or the zone "
                f"{settings.zone} is not open to the project {settings.project}"
            )
            raise ProvisionerRefused(f"{what} is not allowed: {error.message}; {causes}") from error
        except (
            exceptions.ServerError,
            exceptions.TooManyRequests,
            exceptions.RetryError,
            exceptions.Cancelled,
        ) as error:
            raise ProvisionerUnavailable(f"{what}: {settings.service} did not answer properly: {error}") from error
        except exceptions.GoogleAPICallError as error:
            raise ProvisionerRefused(f"{what} was refused by {settings.service}: {error.message}") from error
        except GoogleAuthError as error:
            raise ProvisionerUnavailable(f"{what}: no access token could be had: {error}") from error


class _Missing(ProvisionerError):
    """The API says that there is no such thing; inside this module it is an answer."""


class _Found(NamedTuple):
    """A creation's operation that the search met."""

    name: str
    created: float


class _Creations:
    """What is known of each node's last creation: nothing (None), its running operation, success (""), or its failure.

    `search` is the page of the zone's operations to read next; None when nothing unknown can be in them.
    """

    def __init__(self) -> None:
        self._known: dict[str, str | Exception] = {}
        self._found: dict[str, _Found] = {}
        self._own: set[str] = set()
        self._lock = threading.Lock()
        self._search: str | None = ""

    @property
    def search(self) -> str | None:
        with self._lock:
            return self._search

    def begin(self, node_id: str) -> None:
        with self._lock:
            self._known.pop(node_id, None)
            self._own.discard(node_id)

    def accepted(self, node_id: str, operation: str) -> None:
        with self._lock:
            self._known[node_id] = operation
            self._own.add(node_id)

    def lost(self, node_id: str) -> None:
        """The creation got no answer: if it landed, its operation is among the zone's."""
        with self._lock:
            self._found.pop(node_id, None)
            self._search = ""

    def found(self, node_id: str, operation: str, created: float) -> bool:
        """The search met a creation; whether it is the newest known one of its node."""
        with self._lock:
            best = self._found.get(node_id)
            if node_id in self._own or (best is not None and best.created > created):
                return False
            self._found[node_id] = _Found(operation, created)
            self._known[node_id] = operation
            return True

    def searched(self, page: str, following: str | None) -> None:
        with self._lock:
            if self._search == page:
                self._search = following

    def ended(self, node_id: str, operation: str, failure: Exception | None) -> None:
        with self._lock:
            if self._known.get(node_id) == operation:
                self._known[node_id] = failure or ""

    def get(self, node_id: str) -> str | Exception | None:
        with self._lock:
            return self._known.get(node_id)

    def failed(self, node_id: str) -> Exception | None:
        known = self.get(node_id)
        return known if isinstance(known, Exception) else None


class _Call(NamedTuple):
    """`grpc.ClientCallDetails` with our metadata."""

    method: str
    timeout: float | None
    metadata: Sequence[tuple[str, str]]
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _BearerToken(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc] # grpc has no types
    """Adds the emulator's token to every call; the channel stays on this machine, so it needs no TLS."""

    def __init__(self, token: str) -> None:
        self._header = ("authorization", f"Bearer {token}")

    def intercept_unary_unary(self, continuation: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:
        call = _Call(
            method=details.method,
            timeout=details.timeout,
            metadata=[*(details.metadata or ()), self._header],
            credentials=details.credentials,
            wait_for_ready=details.wait_for_ready,
            compression=details.compression,
        )
        return continuation(call, request)
