"""A host's bounded serial log, and the blocks of loopback addresses that nodes live in."""

from __future__ import annotations

import errno
import socket
from contextlib import closing
from pathlib import Path

import pytest

from bastion.emulators.loopback import METADATA_PORT, AddressBlocks
from bastion.emulators.serial_log import SerialLog


def test_a_serial_log_keeps_the_latest_and_never_more_than_two_files_of_its_bound(tmp_path: Path) -> None:
    log = SerialLog(tmp_path / "serial.log", max_bytes=100)
    for number in range(50):
        log.write(f"line {number:03d}\n".encode())
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["serial.log", "serial.log.1"]
    assert all(path.stat().st_size <= 100 for path in files)
    assert files[0].read_text().endswith("line 049\n")


def test_a_serial_log_on_a_full_disk_loses_output_and_does_not_raise(tmp_path: Path) -> None:
    full = tmp_path / "serial.log"
    full.symlink_to("/dev/full")
    SerialLog(full).write(b"a line\n")


def test_two_nodes_never_share_a_block_and_a_block_is_free_again_when_its_sockets_are_closed() -> None:
    blocks = AddressBlocks()
    first, second = blocks.take(3), blocks.take(3)
    try:
        places = [[listener.getsockname() for listener in block] for block in (first, second)]
        for block in places:
            assert [address.rpartition(".")[2] for address, _ in block] == ["1", "2", "3"]
            assert {port for _, port in block} == {METADATA_PORT}
        assert not set(places[0]) & set(places[1])
        with pytest.raises(OSError) as taken:
            socket.create_server(places[0][0])
        assert taken.value.errno == errno.EADDRINUSE
    finally:
        for listener in [*first, *second]:
            listener.close()
    with closing(socket.create_server(places[0][0])) as again:
        assert again.getsockname() == places[0][0]


def test_a_block_with_one_address_taken_is_passed_over_whole() -> None:
    (mine,) = AddressBlocks().take(1)
    block = mine.getsockname()[0].rpartition(".")[0]
    mine.close()
    with closing(socket.create_server((f"{block}.2", METADATA_PORT))):
        found = AddressBlocks().take(2)  # begins at the same block, as every one of this process does
        try:
            assert not any(listener.getsockname()[0].startswith(f"{block}.") for listener in found)
        finally:
            for listener in found:
                listener.close()
