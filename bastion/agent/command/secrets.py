"""The values of a job's secrets on this host.

Invariant: values are in memory and in the environment of the job's processes only, never in a message or a file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from bastion.agent.backoff import Backoff
from bastion.agent.download import Download
from bastion.core import limits
from bastion.core.errors import SecretUnavailable, SecretUnreadable, StoreUnavailable
from bastion.ports import SecretSource


class SecretsReading(Download):
    """Reads the values of an order's secrets. Its problem is a SecretUnreadable.

    Attributes:
        values: By variable; complete once it is done without a problem.
    """

    def __init__(
        self,
        references: Mapping[str, str],
        sources: Mapping[str, SecretSource],
        *,
        backoff: Backoff,
        on_done: Callable[[], None],
        files: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`files`: gives this thread the command's rights to files, for the sources that are files of the host."""
        failure = SecretUnreadable("the job's secrets were not read; see the log of the host's agent")
        super().__init__(
            "a secret of the job", failure=failure, expected=SecretUnreadable, backoff=backoff, on_done=on_done
        )
        self._references = references
        self._sources = sources
        self._files = files
        self.values: dict[str, str] = {}

    def _download(self) -> None:
        """Raises SecretUnreadable for the first that cannot be read, or if they are too many bytes together for a
        process's environment.
        """
        for name, reference in sorted(self._references.items()):
            self.values[name] = self._retry(functools.partial(self._read, name, reference))
        if sum(len(value.encode("utf-8", "surrogateescape")) for value in self.values.values()) > (
            limits.SECRETS_MAX_BYTES
        ):
            most = limits.SECRETS_MAX_BYTES // 1024
            raise SecretUnreadable(
                f"the {len(self.values)} secrets are larger than {most} KiB together, too large for variables; let the "
                "command read the files"
            )

    def _read(self, name: str, reference: str) -> str:
        scheme, _, where = reference.partition(":")
        source = self._sources.get(scheme)
        if source is None:
            known = ", ".join(f"{each}:" for each in sorted(self._sources))
            raise SecretUnreadable(
                f"secret {name}: this host knows no source {scheme}:, only {known}; use one of these"
            )
        try:
            # Other sources need what is the agent's own: its Google credentials, or what is mounted for it.
            with self._files() if scheme == "file" else nullcontext():
                return source.read(where)
        except SecretUnreadable as error:
            raise SecretUnreadable(f"secret {name}: {error}") from None
        except SecretUnavailable as error:
            raise StoreUnavailable(f"secret {name}: {error}") from None
