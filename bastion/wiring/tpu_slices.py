"""Slices from the Cloud TPU API as the operator settings say: the project, and the real service or an emulator.

The settings come with the first tick and may change. Loads google and grpc only for the first slice.

Invariant: the first project and endpoint stay. In another project the present slices would not be found, and their jobs
would be started twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bastion.adapters.reconnecting_provisioner import ReconnectingProvisioner
from bastion.core import documents
from bastion.core.bucket import keys
from bastion.core.errors import ProvisionerUnavailable
from bastion.core.model.clusters import cluster_of
from bastion.core.model.provisioning import Provisioning
from bastion.ports import Provisioner


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudApi:
    """Where slices come from."""

    project: str
    # Of an emulator; empty for the real service.
    endpoint: str
    token: str


class CloudSlices:
    """Applies settings, and makes the provisioner for them.

    `connect` makes a provisioner for an API. `bucket_is_near`: the bucket is on this machine, where slices in the cloud
    cannot reach it.
    """

    def __init__(self, connect: Callable[[CloudApi], Provisioner], *, bucket_is_near: bool) -> None:
        self._settings: Provisioning | None = None
        self._bucket_is_near = bucket_is_near
        self.provisioner = ReconnectingProvisioner(
            locate=self._locate,
            connect=connect,
            absent=f"{keys.DAEMON_SETTINGS} does not say where slices come from",
        )

    def apply_settings(self, settings: Provisioning) -> str:
        """Apply the settings in force; return a message about what cannot be applied, or ""."""
        if all(map(cluster_of, settings.zones())):
            return ""  # nothing comes from here
        if self._bucket_is_near and not settings.endpoint:
            return (
                f"{keys.DAEMON_SETTINGS} names no endpoint. Slices in the cloud cannot reach a bucket on this "
                "machine, so no slice is created. Set an emulator's endpoint, or use a bucket in the cloud"
            )
        if self._settings is None:
            self._settings = settings
        if _service(settings) != _service(self._settings):
            project, endpoint = _service(self._settings)
            return (
                f"slices still come from {project}{' at ' + endpoint if endpoint else ''}, but "
                f"{keys.DAEMON_SETTINGS} names another project or endpoint; restart the daemon when no slice is left"
            )
        self._settings = settings
        return ""

    def _locate(self) -> CloudApi | None:
        settings = self._settings
        if settings is None:
            return None
        return CloudApi(project=settings.project, endpoint=settings.endpoint, token=_token(settings.token_file))


def _service(settings: Provisioning) -> tuple[str, str]:
    return settings.project, settings.endpoint


def _token(path: str) -> str:
    """Return the token in that file, alone or in an emulator's `emulator.json`; "" if no file is named.

    Raises ProvisionerUnavailable if it cannot be read.
    """
    if not path:
        return ""
    try:
        data = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ProvisionerUnavailable(
            f"the token_file {path} of {keys.DAEMON_SETTINGS} cannot be read ({error.strerror}); start the emulator"
        ) from error
    try:
        document = documents.loads(data)
    except documents.DocumentError:
        return data.decode("ascii", "replace").strip()
    token = document.get("token") if isinstance(document, dict) else None
    return token if isinstance(token, str) else data.decode("ascii", "replace").strip()
