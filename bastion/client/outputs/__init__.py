"""A job's outputs: which files its hosts have stored, and copies of them in a local folder.

store = client.store  # or the user's own bucket, which `JobInfo.output_to` names
found = find_outputs(store, client.require("job"))
fetched = fetch(store, found, Path("here"))
"""

from __future__ import annotations

from bastion.client.outputs.fetch import Fetched, Progress, fetch
from bastion.client.outputs.stored import FileType, OutputFile, Outputs, find_outputs

__all__ = ["Fetched", "FileType", "OutputFile", "Outputs", "Progress", "fetch", "find_outputs"]
