"""Unit tests open no sockets and start no processes; a test that does fails here and belongs in tests/integration."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from bastion.testing.manual_clock import ManualClock
from bastion.testing.memory_store import MemoryStore

_FORBIDDEN = frozenset({"socket.bind", "socket.connect", "subprocess.Popen", "os.fork", "os.posix_spawn"})
_seen: list[str] = []


def _watch(event: str, _args: object) -> None:
    if event in _FORBIDDEN:
        _seen.append(event)


sys.addaudithook(_watch)


@pytest.fixture(autouse=True)
def _no_sockets_and_no_processes() -> Iterator[None]:
    _seen.clear()
    yield
    assert not _seen, f"a unit test used {', '.join(sorted(set(_seen)))}; move it to tests/integration"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
