"""The sources of secrets on a host, by the scheme of their references."""

from __future__ import annotations

from collections.abc import Mapping

from bastion.adapters.secrets.files import FileSecrets
from bastion.adapters.secrets.pod_secrets import PodSecrets
from bastion.adapters.secrets.variables import VariableSecrets
from bastion.agent.environment import SECRETS_DIR
from bastion.ports import SecretSource


def secret_sources(environ: Mapping[str, str]) -> Mapping[str, SecretSource]:
    """Return the sources of a host; `environ` is its agent's environment."""
    return {
        "file": FileSecrets(),
        "env": VariableSecrets(environ),
        "sm": _SecretManager(),
        "k8s": PodSecrets(environ.get(SECRETS_DIR, "")),
    }


class _SecretManager:
    """Google Secret Manager; its libraries are loaded when a job asks for it."""

    def __init__(self) -> None:
        self._source: SecretSource | None = None

    def read(self, where: str) -> str:
        if self._source is None:
            from bastion.adapters.secrets.secret_manager import SecretManagerSecrets

            self._source = SecretManagerSecrets()
        return self._source.read(where)
