"""The rule of docs/how-to/encrypt-a-bucket.md that closes the command's way around the proxy, tried in a namespace."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bastion.job_user import JobUser

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "encrypt-a-bucket.md"
# Python's errno of a connection that begins, without waiting for its end.
CONNECT = 'import socket; s = socket.socket(); s.setblocking(False); print(s.connect_ex(("199.36.153.9", 443)))'
SCRIPT = """
set -e
ip link set lo up
ip addr add 192.0.2.1/32 dev lo
ip route add 199.36.153.8/30 dev lo src 192.0.2.1
id() {{ echo {uid}; }}
{rule}
setpriv --reuid={uid} --regid={uid} --clear-groups /usr/bin/python3 -c '{connect}'
/usr/bin/python3 -c '{connect}'
"""
EACCES, EINPROGRESS = "13", "115"


def test_the_commands_user_cannot_reach_the_storage_service_and_root_can(user: JobUser) -> None:
    (rule,) = re.findall(r"^ *(ip rule add .*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    if not all(map(shutil.which, ("unshare", "ip", "setpriv", "/usr/bin/python3"))):
        pytest.skip("needs unshare, ip, setpriv and a Python that everybody may run")
    if subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine makes no network namespaces")
    script = SCRIPT.format(uid=user.uid, rule=rule, connect=CONNECT)
    done = subprocess.run(["unshare", "-n", "bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == ([EACCES, EINPROGRESS], "")
