"""`bench.toml`: what is read, and what is said of a bad one: what, why, and what to do."""

from __future__ import annotations

import pytest

from bastion.benchmark import file_problems, matrix
from bastion.benchmark.file_problems import BenchmarkFileError
from bastion.benchmark.layout import Better
from tests.support.bench_files import benchmark, text


def test_a_file_becomes_a_benchmark() -> None:
    found = benchmark()
    assert (found.name, found.project, found.repeats, found.parallel, found.warmup) == ("matmul", "a", 3, None, 0)
    assert (found.run.max_run, found.run.deadline, found.run.num_replicas) == (1200, 21600, 1)
    assert found.environment.down == ["make down"]
    assert found.metrics["seconds"].better is Better.LOWER
    assert found.metrics["seconds"].gate == 0.05
    assert len(found.sha256) == 64


def test_a_gate_is_a_part_or_a_percentage() -> None:
    assert benchmark(('unit = "s"', 'unit = "s"\ngate = "2.5%"')).metrics["seconds"].gate == 0.025
    assert benchmark(('unit = "s"', 'unit = "s"\ngate = 0.1')).metrics["seconds"].gate == 0.1


_METRIC = '[metrics.seconds]\nunit = "s"\nbetter = "lower"\n'


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"make up"', '"make\\u0000up"', "environment.up[0] is not valid"),
        ("repeats = 3", "repeats = 0", "line 4: repeats is not valid: input should be greater than or equal to 1"),
        ("[1024, 4096]", "[1024, nan]", "line 7: matrix.size[1] has the value nan, which is no number; remove it"),
        ("[1024, 4096]", "[1024, 1024]", "line 7: matrix.size has the value 1024 twice; remove one"),
        ("[1024, 4096]", "[]", "line 7: matrix.size is empty; give it a value, or remove it"),
        ("[1024, 4096]", "[[1]]", "must have texts, numbers or true and false as values"),
        ("size = [1024", "si-ze = [1024", "has the variable 'si-ze', which cannot be written in braces"),
        (
            '"20m"',
            '"-5m"',
            "run.max_run must be a duration such as '45m' or '2h' (units: s, m, h, d), and not negative",
        ),
        ('"20m"', '"0s"', "run.max_run is 0s; use a duration from 1s to 30d"),
        ('max_run = "20m"\n', "", "run.max_run is missing; it ends a job that hangs"),
        (_METRIC, "", "metrics is missing; there is nothing to compare without one: add [metrics.NAME]"),
        ("[metrics.seconds]", '[metrics."../x"]', "metrics.'../x' is not a valid name of a metric; use letters"),
        ("[metrics.seconds]", '[metrics."<script>"]', "metrics.'<script>' is not a valid name of a metric"),
        ('better = "lower"', 'better = "less"', "metrics.seconds.better must be 'higher' or 'lower'"),
        ('unit = "s"', 'unit = "s"\ngate = 5', "metrics.seconds.gate must be a part between 0 and 1"),
        ('"matmul"', '"Mat/Mul"', "name 'Mat/Mul' cannot be part of a key; use lowercase letters"),
        ('"matmul"', f'"{"m" * 38}"', "name is 38 characters long; the maximum is 37"),
        ("{size}", "{sizes}", "run.command names {sizes}, but [matrix] has no variable sizes (it has: size, slice)"),
        ("--size={size}", "8", "matrix.size is used nowhere, so its cells would all run the same; write {size}"),
        ("{size}", "{size} ${HOME}", "write {{HOME}} for the text {HOME}"),
        ("{size}", "{size} {print $1}", "run.command has '{print $1}', which is no variable; write {{ and }}"),
        ('slice = "tpu-v4-16"}', 'slice = "tpu"}', "matrix.exclude[0] has slice = tpu, which matches no cell"),
        ('slice = "tpu-v4-16"}', 'kind = "tpu"}', "matrix.exclude[0] names 'kind', which is no variable"),
        ("exclude = [{size = 1024, slice", "exclude = [{size=1024},{size=4096},{slice", "leaves no cell"),
        ("repeats", "repeat", "line 4: repeat is not a valid key; did you mean repeats?"),
        ("[environment]", "[budget]\nunit_hours = -1\n[environment]", "budget.unit_hours is not valid"),
        ("[1024, 4096]", f"{list(range(1000, 1600))}", "the matrix has 1199 cells; the maximum is 1000; remove values"),
        ("repeats = 3", "repeats = 101", "repeats is not valid: input should be less than or equal to 100"),
        ('"matmul"', '"matmul', "the file is not valid TOML"),
    ],
)
def test_a_bad_file_is_refused_with_what_why_and_remedy(old: str, new: str, said: str) -> None:
    with pytest.raises(BenchmarkFileError) as refused:
        file_problems.read(text((old, new)).encode())
    assert any(said in each for each in refused.value.problems), refused.value.problems


def test_a_million_cells_are_counted_without_being_made() -> None:
    values = str(list(range(1000)))
    with pytest.raises(BenchmarkFileError, match=r"the matrix has 1000000 cells; the maximum is 1000"):
        file_problems.read(
            text(("[1024, 4096]", values), ('["tpu-v4-8", "tpu-v4-16"]', values), ("exclude = [{size", "#")).encode()
        )


def test_bytes_that_are_no_text_and_long_files_are_refused() -> None:
    for data, said in (
        (b"\xff\xfe", "is not UTF-8"),
        (b"#" * 300_000, "is longer than the maximum of 262144 bytes"),
        (b"a = " + b"9" * 500, "long"),
    ):
        with pytest.raises(BenchmarkFileError, match=said):
            file_problems.read(data)


def test_cells_are_the_product_without_what_is_excluded() -> None:
    assert [cell.slug for cell in matrix.cells(benchmark())] == ["1024_tpu-v4-8", "4096_tpu-v4-8", "4096_tpu-v4-16"]


def test_slugs_are_safe_and_unique() -> None:
    found = matrix.cells(benchmark(("[1024, 4096]", '["a/b", "a b", "../x", "A/B"]'), ("exclude = [{size", "#")))
    slugs = [cell.slug for cell in found]
    assert len({slug.lower() for slug in slugs}) == 8
    assert not any("/" in slug or slug.startswith(".") for slug in slugs)


def test_true_is_another_value_than_1() -> None:
    found = benchmark(("[1024, 4096]", "[1, true]"), ("size = 1024, slice", "size = true, slice"))
    assert [cell.variables["size"] for cell in matrix.cells(found)] == [1, 1, True]


def test_each_round_has_every_cell_once_in_a_seeded_order() -> None:
    cells = matrix.cells(benchmark())
    order = matrix.members(cells, repeats=3, parallel=2, seed=7)
    assert order == matrix.members(cells, repeats=3, parallel=2, seed=7)
    for number in range(3):
        part = order[3 * number : 3 * number + 3]
        assert {each.cell.slug for each in part} == {cell.slug for cell in cells}
        assert {each.repeat for each in part} == {number + 1}
    assert [each.after for each in order] == [None, None, 0, 1, 2, 3, 4, 5, 6]
    assert all(each.after is None for each in matrix.members(cells, repeats=3, parallel=None, seed=7))
    rounds = [[each.cell.slug for each in order[at : at + 3]] for at in (0, 3, 6)]
    assert len({tuple(each) for each in rounds}) > 1


def test_values_are_quoted_for_the_shell() -> None:
    values = {"x": "a b; rm -rf /", "n": 0.5, "on": True}
    assert matrix.filled("run {x} {n} {on} ${{HOME}}", values, quoted=True) == "run 'a b; rm -rf /' 0.5 true ${HOME}"
    assert matrix.filled("{x}", values, quoted=False) == "a b; rm -rf /"
