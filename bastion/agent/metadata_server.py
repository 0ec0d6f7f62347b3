"""Client of a VM's metadata server, real or emulated: who this host is. Never uses a proxy."""

from __future__ import annotations

import http.client
import logging
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

from bastion.agent.backoff import Backoff
from bastion.agent.identity import HostIdentity, is_number, parse_peers, parse_slice_index, parse_slices_address
from bastion.core.bucket import protocol
from bastion.core.bucket.protocol import AgentArguments
from bastion.core.errors import BastionError, InvalidDocument, NotFound, StoreUnavailable

_log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 10.0
_MAX_BYTES = 1024 * 1024
_INSTANCE = "/computeMetadata/v1/instance/"
AGENT_ATTRIBUTE = "bastion-agent"


class MetadataServer:
    def __init__(self, address: str) -> None:
        self._address = address

    @staticmethod
    def from_environment(environ: Mapping[str, str]) -> MetadataServer:
        return MetadataServer(environ.get("GCE_METADATA_HOST") or "metadata.google.internal")

    def attribute(self, name: str) -> str:
        """One attribute of the instance.

        Raises NotFound if there is none, StoreUnavailable if the server did not answer or is not a metadata server.
        """
        return self._get(f"attributes/{name}", timeout_seconds=_TIMEOUT_SECONDS)[0]

    def watch(self, path: str, *, tag: str, wait_seconds: float) -> tuple[str, str]:
        """A value and its tag; given an earlier tag, wait up to that time for a change. Raises like `attribute`."""
        if not tag:
            return self._get(path, timeout_seconds=_TIMEOUT_SECONDS)
        query = {"wait_for_change": "true", "last_etag": tag, "timeout_sec": f"{wait_seconds:.0f}"}
        return self._get(f"{path}?{urlencode(query)}", timeout_seconds=wait_seconds + _TIMEOUT_SECONDS)

    def _get(self, path: str, *, timeout_seconds: float) -> tuple[str, str]:
        connection = http.client.HTTPConnection(self._address, timeout=timeout_seconds)
        try:
            connection.request("GET", _INSTANCE + path, headers={"Metadata-Flavor": "Google"})
            response = connection.getresponse()
            body = response.read(_MAX_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise StoreUnavailable(f"the metadata server {self._address} did not answer: {error}") from error
        finally:
            connection.close()
        if response.status == http.client.NOT_FOUND:
            raise NotFound(f"this VM's metadata has no {path}")
        if response.status != http.client.OK:
            raise StoreUnavailable(f"the metadata server answered {response.status} for {path}")
        return body.decode("utf-8", "replace"), response.getheader("ETag") or ""


def read_identity(server: MetadataServer) -> HostIdentity:
    """Read who this host is. Raises BastionError if something is missing or malformed; it may appear later."""
    arguments = protocol.read(AgentArguments, server.attribute(AGENT_ATTRIBUTE).encode())
    slices_address = ""
    if arguments.slice_index is None and arguments.num_slices > 1:
        environment = server.attribute("tpu-env")
        slices_address = parse_slices_address(environment)
        arguments = arguments.model_copy(update={"slice_index": parse_slice_index(environment)})
    number = server.attribute("agent-worker-number").strip()
    if not is_number(number):
        raise InvalidDocument(f"agent-worker-number is {number[:40]!r}, not a number")
    peers = parse_peers(server.attribute("worker-network-endpoints"))
    if len(peers) != arguments.hosts_per_slice:
        # The hosts of a slice boot one by one; the list may not be complete yet.
        raise InvalidDocument(
            f"worker-network-endpoints names {len(peers)} hosts, but the slice has {arguments.hosts_per_slice}"
        )
    return HostIdentity(arguments=arguments, worker=int(number), peers=peers, slices_address=slices_address)


def wait_for_identity(server: MetadataServer, backoff: Backoff, sleep: Callable[[float], None]) -> HostIdentity:
    """Retry `read_identity` forever: the daemon decides when to give a VM up."""
    while True:
        try:
            return read_identity(server)
        except BastionError as error:  # noqa: PERF203 - the loop is a retry
            delay = backoff.next()
            _log.warning("waiting for this VM's metadata; retrying in %.1f s: %s", delay, error)
            sleep(delay)
