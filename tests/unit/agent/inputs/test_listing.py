"""Which objects an input has, and which names are refused."""

from __future__ import annotations

import pytest

from bastion.agent.inputs import listing
from bastion.agent.inputs.problems import InputProblem
from bastion.core.bucket import host_errors
from bastion.testing.memory_store import MemoryStore

URL = "gs://data/tokens"


def _paths(*keys: str, key: str = "tokens", sizes: dict[str, int] | None = None) -> list[str]:
    store = MemoryStore()
    for each in keys:
        store.put(each, b"x" * (sizes or {}).get(each, 1), generation=0)
    prefix, only = listing.prefix_of(store, URL, key)
    return [found.path for found in listing.objects(store, URL, prefix, only)]


def test_an_input_has_the_objects_below_its_folder_only() -> None:
    assert _paths("tokens/a", "tokens/b/c", "tokens2/a", "token", "x") == ["a", "b/c"]
    assert _paths("tokens/a", "x", key="") == ["tokens/a", "x"]


def test_a_url_may_name_one_object() -> None:
    assert _paths("tokens", "tokens2") == ["tokens"]
    assert _paths("deep/er/train.bin", key="deep/er/train.bin") == ["train.bin"]


def test_what_consoles_show_as_a_folder_is_no_file() -> None:
    keys = ("tokens/", "tokens/a", "tokens/b/", "tokens/b/c")
    assert _paths(*keys, sizes={"tokens/": 0, "tokens/b/": 0}) == ["a", "b/c"]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (("tokens/a/../../etc/passwd",), "'a/../../etc/passwd' has an empty, . or .. part; rename"),
        (("tokens/./a",), "has an empty"),
        (("tokens/a//b",), "has an empty"),
        (("tokens//a",), "has an empty"),
        (("tokens/b/",), "has an empty"),
        (("tokens/a", "tokens/a/b"), "'a' is an object, and 'a/b' needs it as a folder"),
        (("tokens/a", "tokens/a-b", "tokens/a.c", "tokens/a/b"), "'a' is an object, and 'a/b' needs it"),
        (("tokens/" + "n" * 256,), "is longer than 255 bytes"),
        (("tokens", "tokens/a"), "tokens is an object and a folder"),
    ],
)
def test_names_that_cannot_be_files_of_one_folder_are_refused(keys: tuple[str, ...], said: str) -> None:
    with pytest.raises(InputProblem, match=r"gs://data/tokens cannot become files: ") as caught:
        _paths(*keys)
    assert caught.value.error == host_errors.INPUT_INVALID
    assert said in str(caught.value)


def test_names_that_begin_alike_are_no_collision() -> None:
    assert _paths("tokens/a", "tokens/a-b", "tokens/ab/c", "tokens/b/a", "tokens/b/aa") == [
        "a",
        "a-b",
        "ab/c",
        "b/a",
        "b/aa",
    ]


def test_an_empty_input_is_refused() -> None:
    with pytest.raises(InputProblem, match=r"is empty: there is no object at tokens/; check the URL") as caught:
        _paths("tokens2/a")
    assert caught.value.error == host_errors.INPUT_MISSING
