"""An emulated API server for the corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kube.runner import Runner


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """Sends scenarios to an emulated API server."""
    from bastion.emulators.kubernetes.apiserver.server import ApiServer

    folder: Path = tmp_path_factory.mktemp("kubernetes")
    server = ApiServer(folder, kueue=True)
    server.open()
    try:
        yield Runner(server.address, _restart(server))
    finally:
        server.close()


def _restart(server: object) -> Callable[[], None]:
    def restart() -> None:
        server.close()  # type: ignore[attr-defined]
        server.open()  # type: ignore[attr-defined]

    return restart
