"""Secrets in the environment of the host's agent, such as a variable of a pod from a Secret of Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping

from bastion.adapters.secrets.values import checked
from bastion.core.errors import SecretUnreadable


class VariableSecrets:
    """Reads `env:NAME`. Bastion's own variables are not for jobs."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def read(self, where: str) -> str:
        what = f"the variable {where} of the host's agent"
        if where.startswith("BASTION_"):
            raise SecretUnreadable(f"{what} is Bastion's own, not a secret for jobs; name another one")
        value = self._environ.get(where)
        if value is None:
            raise SecretUnreadable(
                f"{what} is not set; set it there (on Kubernetes by `secrets` in the pod settings), or correct the name"
            )
        return checked(value, what)
