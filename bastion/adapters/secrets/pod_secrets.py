"""Keys of Secrets of Kubernetes, which the pod's manifest mounts for its job alone."""

from __future__ import annotations

from pathlib import Path

from bastion.adapters.secrets.files import read_file
from bastion.core.errors import SecretUnreadable
from bastion.core.model.secrets import pod_secret


class PodSecrets:
    """Reads `k8s:secret/NAME/KEY`. One line end at the end is not part of the value."""

    def __init__(self, folder: str) -> None:
        """`folder`: the mounted one, with `NAME/KEY`; empty: there is none."""
        self._folder = folder

    def read(self, where: str) -> str:
        try:
            wanted = pod_secret(where)
        except ValueError as error:
            raise SecretUnreadable(f"k8s:{where} {error}") from None
        if not self._folder:
            raise SecretUnreadable(
                f"k8s:{where} is for pods of a cluster, and this host is none; use sm: or file:, or run the job in a "
                "Kubernetes cluster"
            )
        path = Path(self._folder, wanted.name, wanted.key)
        what = f"key {wanted.key} of the Secret {wanted.name}"
        # Mounted as optional: Kubernetes would keep the pod waiting, and say why only in events.
        missing = (
            f"the Secret {wanted.name} in the namespace of the job's pods has no key {wanted.key}, or does not exist; "
            f"create it: `kubectl create secret generic {wanted.name} --from-file={wanted.key}=FILE`"
        )
        closed = "set run_as_user in the pod settings to the image's user, whose group may then read it"
        return read_file(str(path), what, missing=missing, closed=closed)
