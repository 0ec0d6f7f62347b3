"""Inputs of a job (`--input`), and the place of its outputs (`--output_to`): URLs and folders of a spec. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

_BUCKET_URL = re.compile(r"(?P<scheme>gs|s3)://(?P<bucket>[a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?:/(?P<prefix>.*))?")
_URL_MAX_CHARS = 2048
_FOLDER_MAX_BYTES = 1024
_FORMS = "gs://BUCKET/PREFIX, s3://BUCKET/PREFIX, file:///FOLDER or /FOLDER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What is fetched before the command starts: `url`, into `folder` below the working directory."""

    url: str
    folder: str


def check_url(text: str) -> str:
    """Return the URL of a bucket or folder without slashes at its end. Raises ValueError if it is not one."""
    url = text if text.endswith("://") else text.rstrip("/")
    if not text.isprintable() or len(text) > _URL_MAX_CHARS:
        raise ValueError(f"must be {_FORMS}, printable, of at most {_URL_MAX_CHARS} characters")
    found = _BUCKET_URL.fullmatch(url)
    if found is None and url.startswith(("gs://", "s3://")):
        bucket = url.split("/")[2]
        raise ValueError(
            f"must name a bucket: {bucket[:80]!r} is no name of one (three or more lower-case letters, digits, . _ -)"
        )
    if found is None and not path_of(url).startswith("/"):
        raise ValueError(f"must be {_FORMS}")
    names = (found["prefix"] or "" if found else path_of(url)[1:]).split("/")
    if any(name in ("", ".", "..") for name in names) and names != [""]:
        raise ValueError("must not have . or .., nor an empty name between slashes")
    return url


def path_of(url: str) -> str:
    """Return what follows `file://`, which is no path unless it begins with a slash; any other text as it is."""
    return unquote(url.removeprefix("file://")) if url.startswith("file://") else url


def check_folder(text: str) -> str:
    """Accept only folders below the working directory, because hosts may share a machine. Raises ValueError."""
    names = text.rstrip("/").split("/")
    if any(name in ("", ".", "..") or len(name.encode()) > 255 for name in names) or not text.isprintable():
        raise ValueError("must be a folder below the command's working directory, such as data")
    if len(text.encode()) > _FOLDER_MAX_BYTES:
        raise ValueError(f"must be a folder's path of at most {_FOLDER_MAX_BYTES} bytes")
    return "/".join(names)


def parse(text: str) -> Input:
    """Read `URL[:DIR]`; DIR defaults to the last part of the URL. Raises ValueError."""
    scheme, mark, rest = text.partition("://")
    url, colon, folder = (rest if mark else text).rpartition(":")
    if not colon:
        url, folder = rest if mark else text, ""
    url = check_url(f"{scheme}://{url}" if mark else url)
    if colon and not folder:
        raise ValueError("has no folder after the colon; write URL:DIR, or URL alone")
    return Input(url=url, folder=check_folder(folder or url.rstrip("/").rpartition("/")[2]))


def check_apart(inputs: Sequence[Input], output_dir: str) -> None:
    """Refuse folders of inputs that are the same as, or inside, another one or the output folder. Raises ValueError."""
    folders = [each.folder for each in inputs]
    output = "/".join(name for name in output_dir.split("/") if name not in ("", "."))
    for number, folder in enumerate(folders):
        for other in folders[:number]:
            if _overlap(folder, other):
                raise ValueError(f"two inputs go into {other} and {folder}; give each a folder of its own with URL:DIR")
        if output and _overlap(folder, output):
            raise ValueError(f"an input goes into {folder}, which would be stored with the outputs of {output}")


def _overlap(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")
