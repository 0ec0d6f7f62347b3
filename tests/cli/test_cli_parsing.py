"""Flags, operands, help and refusals, before any bastion is involved."""

from __future__ import annotations

import json

import pytest
from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.parsing import parse
from bastion.cli.registry import ENTRIES, GROUPS
from bastion.core.errors import Refused


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("instance_type", "", "Type.", flag_values=values)
    flags.DEFINE_integer("num_replicas", 1, "Replicas.", lower_bound=1, flag_values=values)
    flags.DEFINE_boolean("dry_run", False, "Dry.", flag_values=values)
    flags.DEFINE_boolean("follow", False, "Follow.", short_name="f", flag_values=values)
    flags.DEFINE_multi_string("env", [], "Env.", flag_values=values)


COMMAND = Command(
    summary="A command.",
    usage="[flags] -- CMD",
    define=_define,
    takes_command=True,
    takes_output=True,
    run=lambda _: 0,
)


def parsed(*arguments: str) -> Invocation:
    return parse("try", COMMAND, list(arguments))


def test_dashes_and_underscores_in_flag_names_are_the_same() -> None:
    for spelling in ("--instance-type=x", "--instance_type=x", "-instance-type=x"):
        assert parsed(spelling).flags.instance_type == "x"


def test_a_value_keeps_its_dashes_and_may_look_like_a_flag() -> None:
    assert parsed("--instance-type", "--flagfile=x-y").flags.instance_type == "--flagfile=x-y"
    assert parsed("--env", "A=--dry-run").flags.env == ["A=--dry-run"]


def test_a_switch_is_set_by_its_name_and_unset_by_no() -> None:
    assert parsed("--dry-run").flags.dry_run is True
    assert parsed("-f").flags.follow is True
    for spelling in ("--nodry_run", "--no-dry-run", "--nodry-run", "--dry_run=false"):
        assert parsed("--dry_run", spelling).flags.dry_run is False


def test_only_the_first_double_dash_ends_the_flags() -> None:
    call = parsed("--dry_run", "--", "tool", "--dry_run=x", "--", "-f", "")
    assert call.command == ("tool", "--dry_run=x", "--", "-f", "")
    assert parsed("--dry_run").command is None
    assert parsed("--").command == ()


def test_two_parses_do_not_see_each_other() -> None:
    assert parsed("--instance_type=x").flags.instance_type == "x"
    assert parsed().flags.instance_type == ""


def test_the_global_flags_of_absl_stay_untouched() -> None:
    assert "instance_type" not in flags.FLAGS
    parsed("--instance_type=x")
    assert "instance_type" not in flags.FLAGS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--instnce-type=x"], "bastion try has no flag --instnce-type; did you mean --instance_type?"),
        (["--zzz"], "bastion try has no flag --zzz; see bastion try --help"),
        (["--undefok=zzz", "--zzz"], "--undefok is not supported; leave out the flags that do not exist"),
        (["--flagfile=/etc/passwd"], "--flagfile is not supported; write the flags on the command line"),
        (["-flagfile", "x"], "--flagfile is not supported"),
        (["--instance_type"], "--instance_type requires a value: --instance_type=VALUE"),
        (["--num_replicas=many"], "--num_replicas=many is not a whole number"),
        (["--num_replicas=0"], "flag --num_replicas=0: 0 is not a positive integer"),
        (["--num_replicas=1.5"], "--num_replicas=1.5 is not a whole number"),
        (["--dry_run=2"], "--dry_run=2 is not true or false"),
        (["--output=yaml"], "value should be one of <text|json>"),
        (["--no-dry-run=1"], "--no-dry-run takes no value; use --dry_run=1"),
        (["--dry_run=perhaps"], "--dry_run=perhaps is not true or false"),
        (["python3", "x.py"], "'python3' is not a flag; put the command after --"),
        (["python3", "--", "x.py"], "'python3' before the -- is not a flag"),
    ],
)
def test_a_wrong_flag_is_refused_with_what_to_do(arguments: list[str], message: str) -> None:
    with pytest.raises(Refused) as caught:
        parsed(*arguments)
    assert message in str(caught.value)
    assert caught.value.exit_code == 64


def test_operands_after_a_double_dash_belong_to_commands_that_run_nothing() -> None:
    command = Command(summary="x", usage="FILE", operands=(1, 1), run=lambda _: 0)
    assert parse("check", command, ["--", "-odd-name"]).operands == ("-odd-name",)
    assert parse("check", command, ["-"]).operands == ("-",)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["lunch"], "no such command: 'lunch'; did you mean bastion launch?"),
        (["check"], "did you mean bastion benchmark check or bastion quota check?"),
        (["qqqqqqqq"], "see bastion --help"),
        (["--frob"], "no such command: '--frob'"),
        (["local"], "bastion local requires a command: bastion local up|down|status"),
        (["quota", "chekc", "x"], "bastion quota has no command chekc; did you mean check?"),
        (["history"], "JOB is missing; usage: bastion history JOB"),
        (["cancel"], "name the jobs to cancel, a pattern of names, --all, or flags"),
        (["benchmark", "compare", "a"], "B is missing; usage: bastion benchmark compare A B ["),
        (["benchmark", "compare"], "A and B are missing; usage: bastion benchmark compare A B ["),
        (["config", "set", "root"], "VALUE is missing; usage: bastion config set KEY VALUE"),
        (["why", ""], "the job name is empty; usage: bastion why JOB"),
        (["list", "--root="], "--root is empty; give it a value or leave it out"),
        (["list", "--bastion=", "--bucket=/b"], "--bastion is empty"),
        (["history", "a", "b"], "bastion history does not take 'b'"),
        (["version", "\x1b[2Jx"], r"'\\x1b[2Jx'"),
        (
            ["quota", "check", "/nonexistent/file"],
            "cannot read the quota file /nonexistent/file: No such file or directory",
        ),
        (["instance-types", "h900"], "no such resource type: 'h900'"),
        (["completion", "fish"], "no completion for 'fish'"),
    ],
)
def test_a_wrong_command_is_one_line_on_stderr_and_64(run, argv: list[str], message: str) -> None:
    done = run(*argv, code=64)
    assert done.out == ""
    assert message in done.err
    assert done.err.startswith("bastion: ")
    assert done.err.count("\n") == 1


def test_without_arguments_the_overview_goes_to_stderr(run) -> None:
    done = run()
    assert (done.code, done.out) == (64, "")
    assert "usage: bastion COMMAND" in done.err


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["help"]])
def test_the_overview_names_every_command(run, argv: list[str]) -> None:
    done = run(*argv)
    assert (done.code, done.err) == (0, "")
    for entry in ENTRIES:
        assert f"  {entry.name} " in done.out


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_every_group_has_help(run, group: str) -> None:
    done = run(group, "--help")
    assert (done.code, done.err) == (0, "")
    assert GROUPS[group] in done.out


@pytest.mark.parametrize("name", [entry.name for entry in ENTRIES])
def test_every_command_has_help_with_usage_flags_and_an_example(run, name: str) -> None:
    done = run(*name.split(), "-h")
    assert (done.code, done.err) == (0, "")
    assert f"usage: bastion {name}" in done.out
    assert "Examples:\n  " in done.out
    assert run("help", *name.split()).out == done.out


def test_the_help_of_a_flag_says_once_how_it_is_written(run) -> None:
    shown = run("launch", "--help").out
    assert "; repeat this option" not in shown
    assert "<text|json>" not in shown
    assert "--output=text|json\n        Format of the data on stdout. Default: text.\n" in shown


def test_help_after_the_double_dash_is_the_commands_own(run) -> None:
    done = run("launch", "--root=/nowhere/x-bastion", "--", "tool", "--help")
    assert "usage" not in done.out
    assert done.code == 64


def test_the_version_is_shown(run) -> None:
    assert run("version").out.startswith("bastion 0.")
    assert run("--version").out == run("version").out


def test_json_is_the_only_thing_on_stdout(run) -> None:
    assert "python" in json.loads(run("version", "--output=json").out)
    types = json.loads(run("instance-types", "v4", "--output=json").out)
    assert {"tpu-v4-8", "tpu-v4-32"} <= {kind["name"] for kind in types}


def test_the_instance_types_show_hosts_and_quota(run) -> None:
    line = next(line for line in run("instance-types", "v4").out.splitlines() if line.startswith("tpu-v4-32 "))
    assert line.split()[:5] == ["tpu-v4-32", "32", "v4", "4", "16"]
    assert " ".join(line.split()[6:]) == "Cloud TPU, Kubernetes us-central2-b"


@pytest.mark.parametrize(
    ("name", "where", "platforms"),
    [
        ("tpu-v3-8", "Cloud TPU", ["cloud-tpu"]),
        ("tpu-v6e-16", "Cloud TPU, Kubernetes", ["cloud-tpu", "kubernetes"]),
        ("tpu7x-8", "Kubernetes", ["kubernetes"]),
        ("gpu-h100-8", "GKE, EKS, generic clusters", ["kubernetes"]),
        ("gpu-l4-1", "GKE, generic clusters", ["kubernetes"]),
        ("gpu-h100-mega-8", "GKE", ["kubernetes"]),
        ("gpu-gb200-4", "known, not served", []),
    ],
)
def test_the_instance_types_show_where_they_exist(run, name: str, where: str, platforms: list[str]) -> None:
    line = next(line for line in run("instance-types").out.splitlines() if line.startswith(f"{name} "))
    types = {each["name"]: each for each in json.loads(run("instance-types", "--output=json").out)}
    assert types[name]["platforms"] == platforms
    assert f"  {where}" in line and where.count("Kubernetes") == line.count("Kubernetes")


@pytest.mark.parametrize("family", ["gb200"])
def test_the_families_that_are_known_and_not_served_say_so(run, family: str) -> None:
    shown = run("instance-types", family, code=0)
    assert all(line.endswith("known, not served") for line in shown.out.splitlines()[1:])
    assert {kind["served"] for kind in json.loads(run("instance-types", family, "--output=json").out)} == {False}
