"""gsutil, unmodified, in both directions: a folder goes up, comes back, and every command shows what is stored.

`make test` installs gsutil into a virtual environment of its own, because it pins an older google-auth than the one
that Bastion is tested with.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

MIB = 1024 * 1024
# Larger files go through a resumable session, smaller ones through a multipart upload.
_RESUMABLE_BYTES = MIB
_PROGRAM = Path(sys.prefix) / "gsutil" / "bin" / "gsutil"


class Gsutil:
    """The program with a configuration of its own, without credentials.

    Args:
        folder: Empty; for its configuration and state.
        ca_file: The certificates that it trusts.
        environment: Its environment; a proxy that is named there is used.
        endpoint: `HOST:PORT` of a storage endpoint; empty: Cloud Storage's own address.
    """

    def __init__(self, folder: Path, *, ca_file: str, environment: Mapping[str, str], endpoint: str = "") -> None:
        if not _PROGRAM.exists():
            pytest.skip(f"gsutil is not installed in {_PROGRAM.parent.parent}; `make gsutil` installs it")
        host, _, port = endpoint.partition(":")
        place = f"gs_json_host = {host}\ngs_json_port = {port}\n" if endpoint else ""
        config = folder / "boto"
        config.write_text(
            f"[Credentials]\n{place}"
            f"[Boto]\nca_certificates_file = {ca_file}\nnum_retries = 1\n"
            f"[GSUtil]\nstate_dir = {folder / 'state'}\nresumable_threshold = {_RESUMABLE_BYTES}\n"
            "check_hashes = always\nparallel_process_count = 1\n"
            "software_update_check_period = 0\ndisable_analytics_prompt = True\n"
        )
        self._environment = {
            **environment,
            "HOME": str(folder),
            "BOTO_CONFIG": str(config),
            "BOTO_PATH": "",
        }

    def run(self, *words: str, stdin: bytes = b"") -> bytes:
        """Runs a command that must succeed, and returns what it prints."""
        done = self._run(words, stdin)
        assert done.returncode == 0, f"gsutil {' '.join(words)}: {done.stderr.decode()[-3000:]}"
        return done.stdout

    def refused(self, *words: str) -> str:
        """Runs a command that must fail, and returns what it says."""
        done = self._run(words, b"")
        assert done.returncode != 0, f"gsutil {' '.join(words)} succeeded: {done.stdout.decode()[-3000:]}"
        return done.stderr.decode()

    def _run(self, words: tuple[str, ...], stdin: bytes) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [_PROGRAM, *words], input=stdin, capture_output=True, env=self._environment, timeout=100, check=False
        )


def session(gsutil: Gsutil, bucket: str, folder: Path, *, mark: bytes = b"", composes: bool = True) -> None:
    """Uploads, shows, downloads, synchronizes, moves, composes and removes objects of an empty bucket.

    Args:
        folder: Empty; for the files on this side.
        mark: Begins every file that is not empty.
        composes: Whether the bucket serves compose; an encrypted one answers 501.
    """
    tree, up = f"gs://{bucket}/tree", folder / "tree"
    (up / "deep").mkdir(parents=True)
    files = {
        "small": mark + b"\r\n--data--\x00",
        "empty": b"",
        "deep/ü b+c%2F": mark + b"deep",
        "deep/large": mark + os.urandom(3 * _RESUMABLE_BYTES + 77),
    }
    for name, data in files.items():
        (up / name).write_bytes(data)

    gsutil.run("cp", "-r", str(up), f"gs://{bucket}/")

    assert gsutil.run("ls", f"{tree}/**").decode().split("\n")[:-1] == sorted(f"{tree}/{name}" for name in files)
    assert gsutil.run("cat", "-r", "1000000-1000009", f"{tree}/deep/large") == files["deep/large"][1000000:1000010]
    shown = gsutil.run("stat", f"{tree}/deep/large").decode().split()
    assert shown[shown.index("Content-Length:") + 1] == str(len(files["deep/large"]))

    down = folder / "down"
    down.mkdir()
    gsutil.run("cp", "-r", tree, str(down))
    assert _files(down / "tree") == files

    files["small"] = mark + b"another"
    files["new"] = mark + b"streamed"
    del files["empty"]
    (up / "small").write_bytes(files["small"])
    (up / "empty").unlink()
    gsutil.run("cp", "-", f"{tree}/new", stdin=files["new"])
    (up / "new").write_bytes(files["new"])
    gsutil.run("rsync", "-r", "-d", "-c", str(up), tree)
    gsutil.run("rsync", "-r", "-d", "-c", tree, str(down / "tree"))
    assert _files(down / "tree") == files

    gsutil.run("mv", f"{tree}/deep/large", f"{tree}/moved")
    pieces = (f"{tree}/small", f"{tree}/moved")
    if composes:
        gsutil.run("compose", *pieces, f"{tree}/whole")
        pieces = (f"{tree}/whole",)
    else:
        assert "501" in gsutil.refused("compose", *pieces, f"{tree}/whole")
    assert gsutil.run("cat", *pieces) == files["small"] + files["deep/large"]

    gsutil.run("-m", "rm", "-r", tree)
    assert "matched no objects" in gsutil.refused("ls", f"{tree}/**")


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
