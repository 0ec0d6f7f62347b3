"""Which wheels suit which interpreter: against the tags that packaging lists, and what must not suit."""

from __future__ import annotations

import os
import platform
import sys

import pytest
from packaging import tags

from bastion.core.bucket.agent_archive import Manifest, Wheel, pythons
from bastion.core.bucket.wheel_tags import Platform, expand, of_file_name, suits_platform, suits_python

DEBIAN = Platform(system="linux", machine="x86_64", glibc=(2, 35))


@pytest.mark.skipif(sys.platform != "linux" or not hasattr(os, "confstr"), reason="tags of Linux")
def test_whatever_this_interpreter_takes_suits_it() -> None:
    name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    assert name == "glibc"
    major, minor = map(int, version.split(".")[:2])
    here = Platform(system="linux", machine=platform.machine(), glibc=(major, minor))
    supported = {str(tag) for tag in tags.sys_tags() if tag.interpreter[:2] in ("py", "cp")}
    taken = {tag for tag in supported if suits_python(tag, sys.version_info.minor) and suits_platform(tag, here)}
    assert supported - taken == set()


@pytest.mark.parametrize(
    ("tag", "minor", "suits"),
    [
        ("py3-none-any", 10, True),
        ("py310-none-any", 12, True),
        ("py312-none-any", 11, False),
        ("py2-none-any", 11, False),
        ("cp311-cp311-manylinux2014_x86_64", 11, True),
        ("cp311-cp311-manylinux2014_x86_64", 10, False),
        ("cp311-cp311-manylinux2014_x86_64", 12, False),
        ("cp311-abi3-manylinux_2_34_x86_64", 12, True),
        ("cp311-abi3-manylinux_2_34_x86_64", 10, False),
        ("cp313-cp313t-manylinux2014_x86_64", 13, False),
        ("pp310-pypy310_pp73-manylinux2014_x86_64", 10, False),
    ],
)
def test_a_wheel_suits_the_pythons_that_it_was_made_for(tag: str, minor: int, suits: bool) -> None:
    assert suits_python(tag, minor) is suits


@pytest.mark.parametrize(
    ("tag", "suits"),
    [
        ("py3-none-any", True),
        ("cp311-cp311-linux_x86_64", True),
        ("cp311-cp311-manylinux1_x86_64", True),
        ("cp311-cp311-manylinux2014_x86_64", True),
        ("cp311-abi3-manylinux_2_35_x86_64", True),
        ("cp311-abi3-manylinux_2_36_x86_64", False),
        ("cp311-cp311-manylinux2014_aarch64", False),
        ("cp311-cp311-musllinux_1_2_x86_64", False),
        ("cp311-cp311-macosx_11_0_x86_64", False),
        ("cp311-cp311-win_amd64", False),
    ],
)
def test_a_wheel_suits_the_platforms_that_it_was_made_for(tag: str, suits: bool) -> None:
    assert suits_platform(tag, DEBIAN) is suits


def test_a_compressed_tag_is_all_of_its_tags() -> None:
    assert expand("py2.py3-none-any") == ["py2-none-any", "py3-none-any"]
    assert expand("nonsense") == []
    assert of_file_name("cffi-2.1.1-1-cp310-cp310-manylinux2014_x86_64.manylinux_2_17_x86_64.whl") == [
        "cp310-cp310-manylinux2014_x86_64",
        "cp310-cp310-manylinux_2_17_x86_64",
    ]


def wheel(name: str, *tags: str) -> Wheel:
    return Wheel(name=name, version="1", file=f"{name}-1-{tags[0]}.whl", tags=tags)


def test_a_manifest_says_which_pythons_it_serves_and_what_others_lack() -> None:
    manifest = Manifest(
        version="0.1.0",
        needs=("core", "pure"),
        wheels=(
            wheel("core", "cp311-cp311-manylinux2014_x86_64"),
            wheel("pure", "py3-none-any"),
            wheel("core", "cp310-cp310-manylinux2014_x86_64"),
            wheel("extra", "cp310-cp310-manylinux2014_x86_64"),
        ),
    )
    assert Manifest.read(manifest.to_bytes()) == manifest
    assert (manifest.minors, pythons(manifest.minors)) == ((10, 11), "Python 3.10, 3.11")
    assert manifest.lacks(12) == ("core",)
    assert manifest.lacks(11, Platform(system="linux", machine="aarch64", glibc=(2, 36))) == ("core",)
    assert [w.file for w in manifest.choose(11, DEBIAN)] == [
        "core-1-cp311-cp311-manylinux2014_x86_64.whl",
        "pure-1-py3-none-any.whl",
    ]
    assert [w.name for w in manifest.choose(10, DEBIAN)] == ["core", "extra", "pure"]


def test_of_two_wheels_that_suit_the_first_is_chosen() -> None:
    ours, other = wheel("core", "cp311-abi3-manylinux2014_x86_64"), wheel("core", "py3-none-any")
    manifest = Manifest(version="0.1.0", needs=("core",), wheels=(ours, other))
    assert manifest.choose(12, DEBIAN) == (ours,)
    assert manifest.choose(10, DEBIAN) == (other,)
