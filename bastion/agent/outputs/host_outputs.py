"""A host's output folder for one try: where it is, what it begins with, when it is stored."""

from __future__ import annotations

from pathlib import Path

from bastion.agent.backoff import Backoff, jittered
from bastion.agent.host_parts import HostParts
from bastion.agent.outputs.restore import OutputDownload, Restored
from bastion.agent.outputs.store import OutputStore
from bastion.agent.outputs.sync import OutputSync
from bastion.core import limits
from bastion.core.bucket import keys, outputs, protocol
from bastion.core.bucket.manifest_proofs import ManifestProofs
from bastion.core.bucket.protocol import Order
from bastion.core.errors import InvalidDocument, NotFound
from bastion.core.plurals import count
from bastion.ports import ObjectStore

# After its command's grace a stopped host stores outputs for this time, then sends its last report
# (`limits.STOP_REPORT_SLACK_SECONDS`).
STOPPED_SECONDS = 20.0
# The same on a host that shuts down.
URGENT_SECONDS = 3.0
# Below this latency the bucket is a folder or on this machine: writes cost nothing.
_LOCAL_POLL_SECONDS = 1.0
_LOCAL_PERIOD_SECONDS = 5.0
# Names of files that could not be stored, in one log line.
_NAMES_MAX = 5


class FolderBlocked(Exception):
    """The job has something else in the place of its output folder; the text is for users."""


def folder_of(parts: HostParts, order: Order) -> Path | None:
    return (parts.state.work_dir / order.output_dir).absolute() if order.output_dir else None


def order_of(parts: HostParts) -> Order | None:
    """The current order; None if there is no readable one. Raises StoreError."""
    try:
        stored = parts.store.get(keys.order(parts.identity.arguments.run), max_bytes=limits.ORDER_MAX_BYTES)
        return protocol.read(Order, stored.data)
    except (NotFound, InvalidDocument):
        return None


def place_of(parts: HostParts, order: Order, host: int) -> tuple[ObjectStore, str]:
    """The store of a host's outputs, and their folder in it. Raises StoreError, Refused."""
    folder = outputs.of_run(parts.identity.arguments.run, parts.identity.arguments.job, host)
    if not order.output_to:
        return parts.store, folder
    store, key = parts.open_bucket(order.output_to, create=True)
    return store, f"{key}/{folder}" if key else folder


def download(parts: HostParts, order: Order, into: Path) -> OutputDownload:
    owner = 0 if order.output_sync == "worker0" else parts.identity.host
    store, folder = place_of(parts, order, owner)
    return OutputDownload(
        store,
        folder,
        into,
        run=parts.identity.arguments.run,
        proofs=_proofs(parts, order, owner),
        backoff=_backoff(parts),
        on_done=parts.wakeup.set,
        files=parts.state.files,
    )


def create(folder: Path) -> None:
    """Create the folder unless it exists. Raises FolderBlocked, OSError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise FolderBlocked(
            f"the output folder {folder.name} cannot be created: the job has a file in its place; "
            "remove the file, or choose another --output_dir"
        ) from error


def begin(parts: HostParts, order: Order, folder: Path) -> OutputSync:
    """Create the folder, and start storing what appears in it. Raises FolderBlocked, OSError, StoreError."""
    with parts.state.files():
        create(folder)
    store, stored = place_of(parts, order, parts.identity.host)
    arguments = parts.identity.arguments
    local = arguments.poll_seconds <= _LOCAL_POLL_SECONDS
    sync = OutputSync(
        OutputStore(
            store,
            stored,
            proofs=_proofs(parts, order, parts.identity.host),
            run_key=parts.identity.run_key,
        ),
        folder,
        run=arguments.run,
        backoff=_backoff(parts),
        on_done=parts.wakeup.set,
        files=parts.state.files,
        period_seconds=jittered(_LOCAL_PERIOD_SECONDS if local else limits.OUTPUT_PERIOD_SECONDS, parts.rng),
    )
    sync.start()
    return sync


def describe(restored: Restored) -> list[str]:
    """Log lines about the restored outputs."""
    lines = [f"skipping outputs: {text}" for text in restored.passed_over]
    if restored.passed_over_more:
        lines.append(f"skipping outputs of {count(restored.passed_over_more, 'more manifest')}")
    manifest = restored.manifest
    if manifest is not None:
        lines.append(
            f"restored outputs of {manifest.run}: {count(len(manifest.files), 'file')}, {manifest.size} bytes "
            f"(sync {manifest.seq})"
        )
    return lines


def describe_missing(sync: OutputSync) -> str:
    """What is missing in the bucket after the last sync; empty if nothing."""
    if not sync.done:
        return f"some outputs could not be stored: {sync.storage_error or 'there was no time left'}"
    if not sync.left_out:
        return ""
    names = sorted(sync.left_out)
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    shown = ", ".join(f"{name} ({sync.left_out[name]})" for name in names[:_NAMES_MAX])
    return f"not stored: {shown}{more}"


def _proofs(parts: HostParts, order: Order, host: int) -> ManifestProofs:
    """Of this run and of the job's earlier ones, as the order has them."""
    arguments = parts.identity.arguments
    return ManifestProofs(
        place=outputs.of_run(arguments.run, arguments.job, host),
        public_keys={**order.proofs, arguments.run: parts.identity.run_key.public},
    )


def _backoff(parts: HostParts) -> Backoff:
    return Backoff(parts.rng, last_seconds=max(1.0, min(30.0, parts.identity.arguments.poll_seconds * 6)))
