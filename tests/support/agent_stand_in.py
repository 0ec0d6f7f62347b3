"""An agent file whose agent says where it runs; its installer is the real one."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import bastion
from bastion.core.bucket.agent_archive import MANIFEST, Manifest, Wheel

SOURCES = Path(bastion.__file__).parent
# Says where it runs, and stays until it is told to end.
AGENT = """
import json, os, signal, sys
from pathlib import Path

class Ended(Exception):
    pass

def end(*_):
    raise Ended

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    path = Path(os.environ["TEST_NOTES"]) / str(os.getpid())
    said = {"path": sys.path, "arguments": sys.argv[1:], "environment": dict(os.environ), "prefix": sys.prefix}
    path.with_suffix(".new").write_text(json.dumps(said))
    path.with_suffix(".new").rename(path.with_suffix(".json"))
    try:
        while True:
            signal.pause()
    except Ended:
        sys.exit(0)
"""


def stand_in(*, agent: str = AGENT, needs: dict[str, str] | None = None, installer: str = "") -> bytes:
    """An agent file: the installer (and more lines), `agent` for its module, further wheels by name and tags."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as wheel:
        copied = ("", "core/", "core/bucket/")
        files_needed = ("core/bucket/agent_archive.py", "core/bucket/wheel_tags.py")
        for name in (*(f"{package}__init__.py" for package in copied), *files_needed):
            wheel.writestr(f"bastion/{name}", (SOURCES / name).read_text())
        wheel.writestr("bastion/agent/__init__.py", (SOURCES / "agent/__init__.py").read_text())
        wheel.writestr("bastion/agent/bootstrap.py", (SOURCES / "agent/bootstrap.py").read_text() + installer)
        for package in ("adapters", "adapters/gcs", "wiring"):
            wheel.writestr(f"bastion/{package}/__init__.py", "")
        wheel.writestr("bastion/adapters/gcs/store.py", "")
        wheel.writestr("bastion/wiring/agent.py", agent)
    files = {"bastion-0.1.0-py3-none-any.whl": buffer.getvalue()}
    wheels = [Wheel(name="bastion", version="0.1.0", file=next(iter(files)), tags=("py3-none-any",))]
    for name, tag in (needs or {}).items():
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as wheel:
            wheel.writestr(f"{name}.py", f"tag = {tag!r}\n")
            wheel.writestr(f"{name}-1.0.data/purelib/{name}_data.py", "")
            wheel.writestr(f"{name}-1.0.data/scripts/{name}", "")
        wheels.append(Wheel(name=name, version="1.0", file=f"{name}-1.0-{tag}.whl", tags=(tag,)))
        files[f"{name}-1.0-{tag}.whl"] = buffer.getvalue()
    manifest = Manifest(version="0.1.0", needs=("bastion", *(needs or {})), wheels=tuple(wheels))
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, data in {MANIFEST: manifest.to_bytes(), **{f"wheels/{n}": d for n, d in files.items()}}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return archive.getvalue()
