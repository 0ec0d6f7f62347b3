"""Restore a job's stored outputs on a host, before the command's first try there.

Invariants:
* The command finds all files of one manifest, each verified, or none.
* What is restored was written by an earlier run of the same job, which its manifest proves.
* Every host of a run begins with the outputs of earlier runs, never with those of another host in this run.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from bastion.agent.backoff import Backoff
from bastion.agent.download import Cancelled, Download
from bastion.agent.outputs.sync import AT_ONCE
from bastion.core import limits
from bastion.core.bucket import outputs
from bastion.core.bucket.manifest_proofs import ManifestProofs
from bastion.core.bucket.outputs import Manifest, StoredFile
from bastion.core.errors import InvalidDocument, NotFound
from bastion.ports import ObjectStore

_log = logging.getLogger(__name__)


# Whoever may write to the folder can put thousands there.
_PASSED_OVER_SAID = 5

Files: TypeAlias = Callable[[], AbstractContextManager[None]]


class _NotWhole(Exception):
    """Part of a manifest is missing or damaged."""


@dataclass(slots=True, kw_only=True)
class Restored:
    """What a host begins with: the restored manifest, if any, and why newer ones were skipped, of the first ones."""

    manifest: Manifest | None = None
    passed_over: list[str] = field(default_factory=list)
    passed_over_more: int = 0

    def pass_over(self, text: str) -> None:
        if len(self.passed_over) < _PASSED_OVER_SAID:
            self.passed_over.append(text)
        else:
            self.passed_over_more += 1


def restore(
    store: ObjectStore,
    folder: str,
    into: Path,
    *,
    run: str,
    proofs: ManifestProofs,
    is_cancelled: Callable[[], bool] = lambda: False,
    files: Files = nullcontext,
) -> Restored:
    """Restore the newest complete outputs of earlier runs into a folder, over existing files.

    Args:
        folder: A `keys.outputs`.
        run: The current run, which does not count.
        proofs: Of earlier runs.
        files: Gives a thread the rights to write the folder.
    """
    result = Restored()
    prefix = folder + outputs.MANIFEST_PREFIX
    found = (outputs.seq_of_manifest(meta.key.removeprefix(folder)) for meta in store.list(prefix))
    for seq in sorted((seq for seq in found if seq is not None), reverse=True):
        name = outputs.manifest_name(seq)
        if is_cancelled():
            raise Cancelled
        staging = into.with_name(f".{into.name}.bastion-restore")  # no name of an input or of the code
        try:
            manifest = proofs.read(seq, store.get(folder + name, max_bytes=limits.OUTPUT_MANIFEST_MAX_BYTES).data)
            if manifest.run == run:
                continue
            with files():
                shutil.rmtree(staging, ignore_errors=True)
            _fetch(store, folder, manifest, staging, is_cancelled, files)
            with files():
                _move(manifest, staging, into)
        except (InvalidDocument, NotFound, _NotWhole, ValueError) as error:  # ValueError: a key that no store can hold
            _log.warning("skipping %s%s: %s", folder, name, error)
            result.pass_over(f"{name}: {error}")
            continue
        finally:
            with files():
                shutil.rmtree(staging, ignore_errors=True)
        result.manifest = manifest
        break
    return result


def _fetch(
    store: ObjectStore, folder: str, manifest: Manifest, staging: Path, is_cancelled: Callable[[], bool], files: Files
) -> None:
    with files():
        staging.mkdir(parents=True)
        for path in sorted(manifest.folders):
            (staging / path).mkdir()
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="output-file")
    try:
        waiting = [
            pool.submit(_fetch_file, store, folder, file, staging / path, is_cancelled, files)
            for path, file in manifest.files.items()
        ]
        for future in waiting:
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _fetch_file(
    store: ObjectStore, folder: str, file: StoredFile, target: Path, is_cancelled: Callable[[], bool], files: Files
) -> None:
    with files():
        opened = target.open("xb")
    with opened as out:
        for part in file.parts:
            if is_cancelled():
                raise Cancelled
            data = store.get(folder + part.object, max_bytes=limits.OUTPUT_PART_BYTES).data
            if not part.holds(data):
                raise _NotWhole(f"{part.object} is damaged")
            out.write(data)
    with files():
        target.chmod(file.mode)
        os.utime(target, ns=(file.mtime_ns, file.mtime_ns))


def _move(manifest: Manifest, staging: Path, into: Path) -> None:
    """Move the files in. They replace files of the job's code at the same paths; its other files stay."""
    into.mkdir(parents=True, exist_ok=True)
    for path in sorted(manifest.folders):
        _give_way(into / path, for_folder=True)
        (into / path).mkdir(exist_ok=True)
    for path in manifest.files:
        _give_way(into / path, for_folder=False)
        (staging / path).replace(into / path)
    for path, target in manifest.links.items():
        _give_way(into / path, for_folder=False)
        (into / path).symlink_to(target)


def _give_way(path: Path, *, for_folder: bool) -> None:
    if path.is_dir() and not path.is_symlink():
        if not for_folder:
            shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class OutputDownload(Download):
    """Runs `restore` with retries. Its problem is an OSError."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        into: Path,
        *,
        run: str,
        proofs: ManifestProofs,
        backoff: Backoff,
        on_done: Callable[[], None],
        files: Files = nullcontext,
    ) -> None:
        # A command must not start from scratch if outputs exist.
        failure = OSError("the outputs of earlier attempts could not be restored")
        super().__init__("the outputs", failure=failure, expected=OSError, backoff=backoff, on_done=on_done)
        self._store = store
        self._folder = folder
        self._into = into
        self._run = run
        self._proofs = proofs
        self._files = files
        self.restored = Restored()

    def _download(self) -> None:
        self.restored = self._retry(
            lambda: restore(
                self._store,
                self._folder,
                self._into,
                run=self._run,
                proofs=self._proofs,
                is_cancelled=self._cancelled.is_set,
                files=self._files,
            )
        )
