"""Other users of the machine: the proxy decrypts with its own user's keys, so only who is named is let in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.attacked_proxy import HOST, MARK, AttackedProxy, attacked

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else"),
]

NOBODY = 65534
# It becomes another user once all that connecting needs is loaded.
CLIENT = """
import os, socket, sys
socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10).close()
os.setuid(int(sys.argv[2]))
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10)
try:
    connection.sendall(b"CONNECT storage.googleapis.com:443 HTTP/1.1\\r\\nHost: storage.googleapis.com\\r\\n\\r\\n")
    sys.stdout.write(connection.recv(100).decode())
except ConnectionError:
    pass
"""


def said_to(user: int, proxy: AttackedProxy) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, str(proxy.port), str(user)],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    return done.stdout


def test_nobody_but_its_user_is_let_in_and_the_log_says_so(tmp_path: Path) -> None:
    with attacked(tmp_path) as proxy:
        proxy.requests().put(f"https://{HOST}/vault/a", data=MARK, timeout=20)
        assert said_to(NOBODY, proxy) == ""
        assert "its owner is another user, or unknown" in proxy.log.read_text()
        assert said_to(0, proxy).startswith("HTTP/1.1 200")
        assert proxy.requests().get(f"https://{HOST}/vault/a", timeout=20).content == MARK


@pytest.mark.parametrize("users", ["any", f"1000,{NOBODY}"], ids=["any", "named"])
def test_who_is_named_is_let_in(tmp_path: Path, users: str) -> None:
    with attacked(tmp_path, GCS_PROXY_USERS=users) as proxy:
        assert said_to(NOBODY, proxy).startswith("HTTP/1.1 200")


def test_another_is_not_let_in_beside_who_is_named(tmp_path: Path) -> None:
    with attacked(tmp_path, GCS_PROXY_USERS="1000") as proxy:
        assert said_to(NOBODY, proxy) == ""
