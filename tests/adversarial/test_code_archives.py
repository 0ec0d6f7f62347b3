"""Tar files made by hand and with ill will: what is unpacked, what is refused, and that nothing gets out."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

import pytest

from bastion.agent.code.archive import BadArchive, unpack
from bastion.agent.download import Cancelled
from bastion.client.code import bundle
from bastion.core import limits


def entry(name: str, kind: bytes = tarfile.REGTYPE, *, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, target, mode
    return made


def archive(*entries: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes], kind: int = tarfile.PAX_FORMAT) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=kind) as tar:
        for item in entries:
            info, data = item if isinstance(item, tuple) else (item, b"")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def link(name: str, target: str) -> tarfile.TarInfo:
    return entry(name, tarfile.SYMTYPE, target=target)


def tree(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_tar_file_of_each_format_is_unpacked(tmp_path: Path, kind: int, compress: Callable[[bytes], bytes]) -> None:
    data = archive(
        entry("./", tarfile.DIRTYPE),
        entry("empty/", tarfile.DIRTYPE),
        (entry("a.py"), b"1"),
        (entry("deep/er/b.txt"), b"x" * 1000),
        (entry("run.sh", mode=0o755), b"#!"),
        link("deep/up", "../a.py"),
        entry("same.py", tarfile.LNKTYPE, target="./a.py"),
        kind=kind,
    )
    folder = tmp_path / "code"
    assert unpack(compress(data), folder) == 5
    assert tree(folder) == {
        "a.py": "1", "deep/er/b.txt": "x" * 1000, "run.sh": "#!", "deep/up": "../a.py", "same.py": "1",
    }  # fmt: skip
    assert (folder / "empty").is_dir()
    assert [bool((folder / name).stat().st_mode & stat.S_IXUSR) for name in ("run.sh", "a.py")] == [True, False]


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT], ids=["gnu", "pax"])
def test_long_and_foreign_names_are_kept(tmp_path: Path, kind: int) -> None:
    name = "/".join(["f" * 120] * 3) + "/" + os.fsdecode(b"caf\xe9 \xc3\xbc")
    assert unpack(archive((entry(name), b"1"), link("l", name), kind=kind), tmp_path / "code") == 2
    assert tree(tmp_path / "code") == {name: "1", "l": name}


def test_what_launch_packs_comes_out_the_same(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "pkg").mkdir(parents=True)
    (source / "pkg" / "ü.py").write_text("x")
    (source / "run").write_text("y")
    (source / "run").chmod(0o700)
    (source / "link").symlink_to("pkg/ü.py")
    packed = bundle.pack(source)
    assert unpack(packed.data, tmp_path / "code") == packed.files == 3
    assert tree(tmp_path / "code") == tree(source)
    # Built wheels hold no dates before 1980.
    assert (tmp_path / "code" / "run").stat().st_mtime > 1e9


HOSTILE = {
    "absolute": [(entry("/etc/passwd"), b"x")],
    "contains ..": [(entry("a/../../out"), b"x")],
    "contains .. as a folder": [entry("../out/", tarfile.DIRTYPE)],
    "absolute link": [link("a", "/etc")],
    "link out": [link("a/b", "../../out")],
    "through a link": [link("a", "."), (entry("a/b"), b"x")],
    "over a link": [link("a", "b"), (entry("a"), b"x")],
    "a link instead of a folder": [(entry("a/b"), b"x"), link("a", "b")],
    "links that climb together": [link("a/b/up", "../.."), link("out", "a/b/up/../x")],
    "hard link out": [entry("a", tarfile.LNKTYPE, target="../secret")],
    "hard link to an absolute path": [entry("a", tarfile.LNKTYPE, target="/etc/passwd")],
    "hard link to a link": [link("a", "b"), entry("c", tarfile.LNKTYPE, target="a")],
    "hard link to what is not there": [entry("a", tarfile.LNKTYPE, target="b")],
    "device": [entry("a", tarfile.CHRTYPE)],
    "block device": [entry("a", tarfile.BLKTYPE)],
    "pipe": [entry("a", tarfile.FIFOTYPE)],
    "twice": [(entry("a"), b"x"), (entry("./a"), b"y")],
    "a file as a folder": [(entry("a"), b"x"), (entry("a/b"), b"y")],
    "the folder as a file": [(entry("."), b"x")],
    "a name that is too long": [(entry("x" * 300), b"x")],
    "a path that is too long": [(entry("a/" * 600 + "b"), b"x")],
}


@pytest.mark.parametrize("entries", HOSTILE.values(), ids=list(HOSTILE))
def test_what_could_get_out_is_refused(tmp_path: Path, entries: Iterable[tarfile.TarInfo]) -> None:
    (tmp_path / "secret").write_text("s")
    with pytest.raises(BadArchive, match=r"^(the entry|the link) '"):
        unpack(archive((entry("good"), b"1"), *entries), tmp_path / "code")
    assert tree(tmp_path).items() >= {"secret": "s"}.items()
    assert {path.name for path in tmp_path.iterdir()} == {"secret", "code"}


def test_a_chain_of_links_that_nobody_could_follow_is_refused(tmp_path: Path) -> None:
    chain = [link(f"l{number}", f"l{number + 1}") for number in range(3000)]
    with pytest.raises(BadArchive):
        unpack(archive(*chain, (entry("l3000"), b"")), tmp_path / "tree")


def test_rights_beyond_execution_are_dropped(tmp_path: Path) -> None:
    unpack(archive((entry("a", mode=0o6777), b"x"), entry("d/", tarfile.DIRTYPE, mode=0o7000)), tmp_path / "code")
    assert stat.S_IMODE((tmp_path / "code/a").stat().st_mode) & 0o7022 == 0
    assert (tmp_path / "code/d").stat().st_mode & 0o700 == 0o700


def test_a_bomb_stops_at_the_limit_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = gzip.compress(archive((entry("a"), bytes(1_000_000)), (entry("b"), bytes(1_000_000))))
    assert len(bomb) < 10_000
    monkeypatch.setattr(limits, "BUNDLE_UNPACKED_MAX_BYTES", 1_500_000)
    with pytest.raises(BadArchive, match="unpacks to more than 1500000 bytes"):
        unpack(bomb, tmp_path / "code")
    assert sum(path.stat().st_size for path in (tmp_path / "code").iterdir()) <= 1_500_000


def test_a_bomb_behind_the_end_is_not_unpacked_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BUNDLE_UNPACKED_MAX_BYTES", 1_000_000)
    monkeypatch.setattr(limits, "BUNDLE_ENTRIES_MAX", 10)
    with pytest.raises(BadArchive, match="unpacks to more"):
        unpack(gzip.compress(archive((entry("a"), b"x")) + bytes(5_000_000)), tmp_path / "code")


def test_a_bomb_stops_at_the_limit_of_entries_folders_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BUNDLE_ENTRIES_MAX", 100)
    with pytest.raises(BadArchive, match="more than 100 entries"):
        unpack(archive(*((entry(f"{n}/" + "d/" * 30 + "x"), b"") for n in range(4))), tmp_path / "code")


def raw_header(name: str, kind: bytes, size: int) -> bytes:
    made = entry(name, kind)
    made.size = size
    return made.tobuf(tarfile.GNU_FORMAT)


def test_headers_that_claim_anything_cost_no_memory_and_no_disk(tmp_path: Path) -> None:
    huge = 1 << 60
    for number, (data, word) in enumerate(
        [
            (raw_header("x", tarfile.XHDTYPE, huge), "a header of"),
            (raw_header("x", tarfile.GNUTYPE_LONGNAME, huge), "a header of"),
            (raw_header("x", tarfile.REGTYPE, huge), "is truncated"),
            (raw_header("x", tarfile.REGTYPE, -1), "negative size"),
            (raw_header("x", tarfile.GNUTYPE_SPARSE, 10), "is not a file, folder or link"),
        ]
    ):
        with pytest.raises(BadArchive, match=word):
            unpack(data + bytes(1024), tmp_path / str(number))


def pax(*records: bytes) -> bytes:
    body = b"".join(records)
    return raw_header("x", tarfile.XHDTYPE, len(body)) + body + bytes(-len(body) % 512)


@pytest.mark.parametrize(
    "records",
    [b"9999999 path=x\n", b"0 path=x\n", b"x", b"5 path", b"16 size=-000001\n", b"25 GNU.sparse.major=1\n...."],
    ids=["longer", "zero", "text", "no value", "size", "holes"],
)
def test_headers_that_cannot_be_read_are_refused(tmp_path: Path, records: bytes) -> None:
    with pytest.raises(BadArchive):
        unpack(pax(records) + archive((entry("a"), b"x")), tmp_path / "code")


def test_the_path_in_a_header_of_its_own_is_checked_like_any(tmp_path: Path) -> None:
    with pytest.raises(BadArchive, match=r"contains \.\."):
        unpack(pax(b"18 path=../../out\n") + archive((entry("a"), b"x"), kind=tarfile.GNU_FORMAT), tmp_path / "code")


def test_a_comment_for_all_is_skipped_as_git_archive_writes_it(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "f" * 40}) as tar:
        tar.addfile(entry("a"))
    assert unpack(packed.getvalue(), tmp_path / "code") == 1


def test_what_is_cut_off_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    whole = archive((entry("a"), b"x" * 700), (entry("b"), b"y"))
    for number, end in enumerate(range(0, 2560, 128)):
        with pytest.raises(BadArchive):
            unpack(whole[:end], tmp_path / f"plain{number}")
    packed = gzip.compress(whole)
    for number in range(2, len(packed) - 1):
        with pytest.raises(BadArchive):
            unpack(packed[:number], tmp_path / f"gzip{number}")


def test_damage_is_refused_or_harmless_and_never_anything_else(tmp_path: Path) -> None:
    whole = archive((entry("a/b"), b"x" * 700), link("l", "a/b"), entry("d", tarfile.DIRTYPE), (entry("c"), b"y"))
    random = Random(5)
    for number in range(300):
        data = bytearray(whole)
        for _ in range(random.randrange(1, 4)):
            data[random.randrange(len(data))] = random.randrange(256)
        folder = tmp_path / str(number)
        try:
            unpack(bytes(data), folder)
        except BadArchive:
            continue
        assert all(path.resolve().is_relative_to(folder) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    "data",
    [b"", b"hello", b"PK\x03\x04" + bytes(600), gzip.compress(b"hello"), zlib.compress(b"x" * 600), b"\x1f\x8b"],
    ids=["empty", "text", "zip", "gzip of text", "zlib", "gzip begun"],
)
def test_what_is_no_tar_file_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(BadArchive):
        unpack(data, tmp_path / "code")


def test_a_file_that_does_not_match_its_own_sum_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(archive((entry("a"), b"x"))))
    packed[-6] ^= 1
    with pytest.raises(BadArchive, match="decompression failed"):
        unpack(bytes(packed), tmp_path / "code")


def test_it_can_be_cancelled_on_the_way(tmp_path: Path) -> None:
    asked = iter([False, False, False, True])
    with pytest.raises(Cancelled):
        unpack(
            archive(*((entry(f"f{n}"), b"x") for n in range(9))), tmp_path / "code", is_cancelled=lambda: next(asked)
        )
    assert len(list((tmp_path / "code").iterdir())) == 2
