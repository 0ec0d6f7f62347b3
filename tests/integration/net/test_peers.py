"""Whose process is at the other end of a loopback connection."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator

import pytest

from bastion.net import peers

Ends = tuple[socket.socket, socket.socket, peers.Address, peers.Address]


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    host = "127.0.0.1" if request.param == socket.AF_INET else "::1"
    try:
        listener = socket.create_server((host, 0), family=request.param)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener, socket.socket(request.param) as client:
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        with server:
            yield client, server, server.getpeername(), server.getsockname()


def test_the_kernel_and_its_table_name_the_same_owner(ends: Ends) -> None:
    client, _, client_end, server_end = ends
    expected = (os.getuid(), os.fstat(client.fileno()).st_ino)
    assert peers._look_up(client_end, server_end) == expected
    assert peers._ask_kernel(client_end, server_end) in (expected, None)


def test_a_connection_of_this_user_is_ours_and_one_of_another_is_not(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, client_end, server_end = ends
    assert peers.is_ours(client_end, server_end)
    uid = os.getuid()
    monkeypatch.setattr(peers, "TRUSTED_UIDS", ())
    monkeypatch.setattr(peers.os, "getuid", lambda: uid + 1)
    assert not peers.is_ours(client_end, server_end)
    assert not peers.is_ours(client_end, server_end, others=(uid + 2,))
    assert peers.is_ours(client_end, server_end, others=(uid + 2, uid))


def test_without_the_kernels_direct_answer_the_table_decides(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_ask_kernel", lambda client, server: None)
    _, _, client_end, server_end = ends
    assert peers.is_ours(client_end, server_end)


def test_a_peer_that_closed_before_it_was_looked_at_is_nobodys(ends: Ends) -> None:
    client, _, client_end, server_end = ends
    client.close()
    assert not peers.is_ours(client_end, server_end)


def test_a_peer_that_sends_no_more_but_still_listens_is_ours(ends: Ends) -> None:
    client, _, client_end, server_end = ends
    client.shutdown(socket.SHUT_WR)
    assert peers.is_ours(client_end, server_end)


def test_who_cannot_be_told_for_want_of_descriptors_is_not_let_in(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, client_end, server_end = ends

    def full(_client: peers.Address, _server: peers.Address) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(peers, "_ask_kernel", full)
    assert not peers.is_ours(client_end, server_end)
