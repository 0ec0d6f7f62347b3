"""An emulated API server per module; `fresh` starts one for a test that changes it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bastion.emulators.kubernetes.apiserver import ApiServer
from tests.support.kubernetes_requests import Requests

Fresh = Callable[..., ApiServer]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("kubernetes")) as opened:
        yield opened


@pytest.fixture
def requests(server: ApiServer) -> Requests:
    return Requests(server.address)


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Fresh]:
    with contextlib.ExitStack() as ending:

        def begin(**settings: float) -> ApiServer:
            opened = ApiServer(tmp_path, **settings)  # type: ignore[arg-type]
            opened.open()
            ending.callback(opened.close)
            return opened

        yield begin
