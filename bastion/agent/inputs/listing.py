"""List an input: what the URL names, as objects with paths that can be files of one folder."""

from __future__ import annotations

from collections.abc import Iterator

from bastion.agent.inputs.problems import InputProblem
from bastion.core import limits
from bastion.core.bucket import host_errors
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.bucket.pinned import PinnedObject
from bastion.ports import ObjectStore

_NAME_MAX_BYTES = 255


def prefix_of(store: ObjectStore, url: str, key: str) -> tuple[str, ObjectMeta | None]:
    """Return what the keys of an input's objects have before their paths, and the object if the URL names just one.

    Raises InputProblem if it names an object and a folder; StoreError.
    """
    if not key:
        return "", None
    folder = f"{key}/"
    found = store.head(key)
    if found is None:
        return folder, None
    if any(meta.key != folder for meta in store.list(folder)):
        raise _invalid(url, f"{key} is an object and a folder", "rename one of them, or name one below the folder")
    return key[: key.rfind("/") + 1], found


def objects(store: ObjectStore, url: str, prefix: str, only: ObjectMeta | None) -> Iterator[PinnedObject]:
    """Yield the objects of an input in the order of their keys.

    Raises InputProblem if a name cannot be a file, or there is no object; StoreError.
    """
    number = 0
    # The last key and those that it begins with: each may be a file in the place of a folder.
    above: list[str] = []
    for meta in [only] if only is not None else store.list(prefix):
        path = meta.key[len(prefix) :]
        if (path.endswith("/") and meta.size == 0) or not path:
            continue  # how consoles and file systems on buckets show a folder
        _check(url, path)
        while above and not path.startswith(above[-1]):
            above.pop()
        file = next((each for each in above if path.startswith(f"{each}/")), None)
        if file is not None:
            raise _invalid(url, f"{file!r} is an object, and {path!r} needs it as a folder", "rename one of them")
        above.append(path)
        number += 1
        if number > limits.INPUT_OBJECTS_MAX:
            raise _invalid(url, f"it has more than {limits.INPUT_OBJECTS_MAX} objects", "pack them into larger files")
        yield PinnedObject(path, meta.size, meta.generation)
    if not number:
        raise InputProblem(
            host_errors.INPUT_MISSING,
            f"the input {url} is empty: there is no object at {prefix or url}; check the URL (links in a folder do not "
            "count)",
        )


def _check(url: str, path: str) -> None:
    for name in path.split("/"):
        if name in ("", ".", ".."):
            raise _invalid(url, f"the object {path[:200]!r} has an empty, . or .. part", "rename it")
        if len(name) > _NAME_MAX_BYTES // 4 and len(name.encode()) > _NAME_MAX_BYTES:
            raise _invalid(url, f"{name[:80]!r}... is longer than {_NAME_MAX_BYTES} bytes", "rename it")


def _invalid(url: str, what: str, remedy: str) -> InputProblem:
    return InputProblem(host_errors.INPUT_INVALID, f"the input {url} cannot become files: {what}; {remedy}")
