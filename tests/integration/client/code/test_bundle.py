"""Packing code: which files, the same bytes each time, no secrets, stored once."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest

from bastion.client.code import bundle
from bastion.client.code import files as code_files
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import Refused
from bastion.testing.counting_store import CountingStore
from bastion.testing.faulty_store import Fault, FaultyStore
from bastion.testing.memory_store import MemoryStore


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A git working tree with tracked, untracked and ignored files."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    write(folder, train_dot_py="print(1)\n", lib__model_dot_py="x = 1\n", _dot_gitignore="*.log\nout/\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    write(folder, new_dot_py="y = 2\n", a_dot_log="noise", out__big="noise")
    return folder


def names(packed: bundle.Bundle) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(packed.data)) as tar:
        return tar.getnames()


def test_a_git_tree_gives_what_is_tracked_and_what_is_not_ignored(tree: Path) -> None:
    (tree / "train.py").write_text("print('changed')\n")
    packed = bundle.pack(tree)
    assert names(packed) == [".gitignore", "lib/model.py", "new.py", "train.py"]
    assert (packed.files, packed.folder, packed.left_out) == (4, tree, ())
    with tarfile.open(fileobj=io.BytesIO(packed.data)) as tar:
        file = tar.extractfile("train.py")
        assert file is not None
        assert file.read() == b"print('changed')\n"


def test_the_bytes_depend_on_names_contents_and_execute_bits_alone(tree: Path, tmp_path: Path) -> None:
    first = bundle.pack(tree)
    assert first.sha256 == hashlib.sha256(first.data).hexdigest()
    os.utime(tree / "train.py", (1, 1))
    (tree / "new.py").chmod(0o600)
    assert bundle.pack(tree).data == first.data
    other = tmp_path / "elsewhere"
    tree.rename(other)
    assert bundle.pack(other).data == first.data
    (other / "new.py").chmod(0o700)
    executable = bundle.pack(other)
    assert executable.sha256 != first.sha256
    with tarfile.open(fileobj=io.BytesIO(executable.data)) as tar:
        assert [(m.name, m.mode, m.mtime, m.uid, m.uname) for m in tar if m.mode & 0o111] == [
            ("new.py", 0o755, 0, 0, "")
        ]


def test_a_file_deleted_in_the_working_tree_is_not_packed(tree: Path) -> None:
    (tree / "train.py").unlink()
    (tree / "lib" / "model.py").unlink()
    (tree / "lib").rmdir()
    (tree / "lib").write_text("now a file")
    assert names(bundle.pack(tree)) == [".gitignore", "lib", "new.py"]


def test_repositories_inside_are_packed_by_their_own_rules(tree: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q")
    write(library, deep_dot_py="z = 3\n", _dot_gitignore="*.tmp\n")
    git(library, "add", ".")
    git(library, "commit", "-qm", "first")
    git(tree, "submodule", "add", "-q", str(library), "sub")
    write(tree, sub__x_dot_tmp="noise", sub__more_dot_py="")
    # A repository that is not tracked, and a submodule that is not checked out.
    git(tree, "clone", "-q", str(library), "clone")
    git(tree, "submodule", "add", "-q", str(library), "absent")
    shutil.rmtree(tree / "absent")
    (tree / "absent").mkdir()
    found = [name for name in names(bundle.pack(tree)) if "/" in name]
    assert found == [
        *("clone/.gitignore", "clone/deep.py", "lib/model.py", "sub/.gitignore", "sub/deep.py", "sub/more.py"),
    ]


def test_of_a_folder_in_a_tree_only_that_folder_is_packed(tree: Path) -> None:
    assert names(bundle.pack(tree / "lib")) == ["model.py"]
    assert code_files.git_top(tree / "lib") == tree
    with pytest.raises(bundle.NothingToPack, match="nothing to pack"):
        bundle.pack(tree / "out")


def test_a_folder_outside_of_git_is_packed_whole_when_it_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path, a_dot_log="1", b__c="2")
    assert code_files.git_top(tmp_path) is None
    assert names(bundle.pack(tmp_path)) == ["a.log", "b/c"]


def test_excluded_is_left_out_and_not_even_looked_at(tree: Path) -> None:
    write(tree, data__x="", _dot_env="SECRET=1")
    assert names(bundle.pack(tree, exclude=["data", "*.py", ".env"])) == [".gitignore"]


def test_links_stay_links_and_those_that_lead_out_stay_out(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("x")
    for name, target in {
        "inside": "lib/model.py",
        "folder": "lib",
        "dangling": "missing",
        "absolute": str(tree / "train.py"),
        "lib/climbs": "../../outside",
        "lib/up": "..",
        # Stays inside as it is written, and not as it is followed.
        "lib/hop": "up/../outside",
    }.items():
        (tree / name).symlink_to(target)
    packed = bundle.pack(tree)
    with tarfile.open(fileobj=io.BytesIO(packed.data)) as tar:
        links = {member.name: member.linkname for member in tar if member.issym()}
    assert links == {"inside": "lib/model.py", "folder": "lib", "dangling": "missing", "lib/up": ".."}
    assert [what.split()[0] for what in packed.left_out] == ["absolute", "lib/climbs", "lib/hop"]


def test_what_is_no_file_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, a="1")
    os.mkfifo("fifo")
    with socket.socket(socket.AF_UNIX) as there:
        there.bind("sock")
        packed = bundle.pack(tmp_path)
    assert (names(packed), packed.left_out) == (["a"], ("fifo (not a file)", "sock (not a file)"))


def test_names_that_are_no_utf_8_are_kept(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9 \xc3\xa9")
    (tmp_path / name).write_text("x")
    with tarfile.open(fileobj=io.BytesIO(bundle.pack(tmp_path).data), encoding="utf-8") as tar:
        assert tar.getnames() == [name]


def test_secrets_are_refused_by_name_and_by_content_with_the_ways_to_go_on(tree: Path) -> None:
    write(tree, _dot_env="A=1", deploy__notes_dot_md="token gh" + "p_" + "a1" * 18 + "\n")
    with pytest.raises(Refused) as refused:
        bundle.pack(tree)
    text = str(refused.value)
    assert ".env (named like a file of passwords or tokens); deploy/notes.md (a GitHub token)" in text
    for way in ("--bundle_exclude=.env --bundle_exclude=deploy/notes.md", "--bundle_allow=.env", "--bundle=none"):
        assert way in text
    assert "a1a1" not in text
    with pytest.raises(Refused, match=r"deploy/notes\.md"):
        bundle.pack(tree, exclude=[".env"])
    assert ".env" in names(bundle.pack(tree, allow=[".env", "notes.md"]))
    assert "deploy/notes.md" not in names(bundle.pack(tree, exclude=["deploy"], allow=[".env"]))


def test_a_secret_that_is_ignored_by_git_disturbs_nobody(tree: Path) -> None:
    write(tree, out__id_rsa="x")
    assert len(names(bundle.pack(tree))) == 4


def test_too_much_is_refused_with_the_largest_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small").write_bytes(b"x")
    (tmp_path / "big").write_bytes(os.urandom(3 * 1024 * 1024))
    monkeypatch.setattr(limits, "BUNDLE_MAX_BYTES", 1024 * 1024)
    with pytest.raises(Refused, match=r"1 MiB compressed. The largest files: big \(3 MiB\)"):
        bundle.pack(tmp_path)
    monkeypatch.setattr(limits, "BUNDLE_UNPACKED_MAX_BYTES", 1024 * 1024)
    with pytest.raises(Refused, match=r"4 MiB, more than 1"):
        bundle.pack(tmp_path)
    monkeypatch.setattr(limits, "BUNDLE_ENTRIES_MAX", 1)
    with pytest.raises(Refused, match="has 2 files"):
        bundle.pack(tmp_path)


def test_what_cannot_be_read_is_named(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is not a folder"):
        bundle.pack(tmp_path / "missing")
    (tree / ".git" / "HEAD").write_text("nonsense")
    with pytest.raises(Refused, match="--bundle=none"):
        bundle.pack(tree)


def test_the_variables_of_a_git_hook_do_not_lead_to_another_repository(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "nothing"))
    assert "train.py" in names(bundle.pack(tree))


def test_it_is_stored_under_its_digest_once(tree: Path) -> None:
    store = CountingStore(MemoryStore())
    packed = bundle.pack(tree)
    assert bundle.upload(store, packed) is True
    assert store.get(keys.bundle(packed.sha256)).data == packed.data
    store.reset()
    assert bundle.upload(store, packed) is False
    assert dict(store.calls) == {"head": 1}


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name)
def test_a_lost_request_or_reply_is_made_good(tree: Path, fault: Fault) -> None:
    store = FaultyStore(MemoryStore())
    store.fail_next("put", fault=fault)
    packed = bundle.pack(tree)
    bundle.upload(store, packed)
    assert store.get(packed.key).data == packed.data


def test_a_foreign_file_under_its_name_is_told(tree: Path) -> None:
    store = MemoryStore()
    packed = bundle.pack(tree)
    store.put(packed.key, b"something else", generation=0)
    with pytest.raises(Refused, match="does not match its digest"):
        bundle.upload(store, packed)


def test_the_commit_of_a_tree_says_whether_files_differ_from_it(tree: Path, tmp_path: Path) -> None:
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "second")
    clean = code_files.commit_of(tree / "lib")
    assert len(clean) == 40
    (tree / "train.py").write_text("print(2)\n")
    assert code_files.commit_of(tree) == f"{clean}-dirty"
    assert code_files.commit_of(tree / "lib") == clean
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    assert code_files.commit_of(empty) == ""
    (tmp_path / "none").mkdir()
    assert code_files.commit_of(tmp_path / "none") == ""
