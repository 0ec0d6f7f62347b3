"""Measure the time from a node's startup script to its agent: `python bench/agent_start.py [--runs=10]`.

The baseline is Python importing the agent. It is compared with the whole script on an emulated host, which reads the
metadata and uses the environment that the first host created. CPU time counts, because the hosts of a slice start
together and share the machine. The first host, which unpacks the agent, is shown separately.
"""

from __future__ import annotations

import argparse
import http.server
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import bastion
from bastion.adapters import agent_packer
from bastion.core.bucket import keys
from bastion.core.bucket.protocol import AgentArguments
from bastion.wiring.roots import open_root

STARTUP = Path(bastion.__file__).parent / "agent" / "startup.sh"


def spent(run: subprocess.Popen[bytes], up: Path | None = None) -> float:
    """Return the CPU seconds until the process ends; with `up`, end it once that file exists."""
    before = os.times()
    while up is not None and not up.exists():
        time.sleep(0.005)
    if up is not None:
        run.terminate()
    run.wait()
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        root = f"{base}/buckets/bench-bastion"
        began = time.process_time()
        packed = agent_packer.pack(base / "kept")
        packing = time.process_time() - began
        open_root(root).put(keys.agent_file(packed.sha256), packed.archive, generation=0)
        arguments = AgentArguments(
            root=root, bastion="bench-bastion", job="job", run="abcdefghij-1", run_key="ab" * 32, agent=packed.sha256
        )
        attributes = {
            "bastion-agent": arguments.to_bytes(),
            "agent-worker-number": b"0",
            "worker-network-endpoints": b"unused:0:127.0.0.1",
        }

        class Metadata(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = attributes.get(self.path.rpartition("/")[2], b"")
                self.send_response(200 if body else 404)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()

            def start(host: str) -> float:
                environment = {
                    "BASTION_AGENT_DIR": str(base / "agents"),
                    "BASTION_EMULATED_TPU": "1",
                    "BASTION_STATE_DIR": str(base / host),
                    "GCE_METADATA_HOST": f"127.0.0.1:{server.server_port}",
                    "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
                }
                script = subprocess.Popen(["bash", str(STARTUP)], env=environment, stderr=subprocess.DEVNULL)
                return spent(script, base / host)

            first = start("first")
            python = str(base / "agents" / packed.sha256 / "bin" / "python")
            baseline, whole = [], []
            for number in range(runs):
                baseline.append(spent(subprocess.Popen([python, "-I", "-c", "import bastion.wiring.agent"])))
                whole.append(start(f"host-{number}"))
            server.shutdown()
    print(f"packing the agent: {packing:.2f} s of CPU time; the file has {len(packed.archive) / 1e6:.1f} MB")
    print(f"the first host, which unpacks it: {first:.2f} s")
    ratio = statistics.median(whole) / statistics.median(baseline)
    print(
        f"every other, median of {runs}: {statistics.median(whole):.2f} s; importing the agent: "
        f"{statistics.median(baseline):.2f} s; {ratio:.2f} x"
    )


if __name__ == "__main__":
    main()
