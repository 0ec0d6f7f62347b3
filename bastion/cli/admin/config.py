"""`bastion config`: the user config, its profiles, and who set what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, plain, say, table
from bastion.cli.parsing import did_you_mean
from bastion.cli.target import resolve
from bastion.core.encryption.key_mapping import KeyMapping
from bastion.core.errors import Refused
from bastion.user_config.settings import Setting, Settings, settings
from bastion.user_config.target import Target, configured
from bastion.user_config.user import default_user
from bastion.user_config.user_file import (
    CONFIG_KEYS,
    UserConfig,
    bastion_home,
    check_profile,
    config_path,
    read_user_config,
    write_user_config,
)
from bastion.wiring.roots import parse_root

# Of the JSON documents.
_FORMAT = 1


def _define_set(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "profile", None, "Set it in this profile only, which is made if there is none.", flag_values=values
    )


def _set(call: Invocation) -> int:
    key, value = call.operands
    if key not in CONFIG_KEYS:
        raise Refused(
            f"unknown config key {plain(key)!r}{did_you_mean(key, CONFIG_KEYS)} (keys: {', '.join(CONFIG_KEYS)})"
        )
    profile = "" if call.flags.profile is None else check_profile(call.flags.profile)
    config = read_user_config()
    section = dict(config.section(profile))
    if not value:
        section.pop(key, None)
    else:
        section[key] = _checked(key, value)
    of = f"profile {profile}" if profile else "your config"
    # `root` and `bastion` name the bastion in two ways; keep only one.
    if value and key == "root" and "bastion" in section:
        del section["bastion"]
        say(f"bastion: removed bastion from {of}; root replaces it")
    if value and key == "bastion" and "root" in section:
        del section["root"]
        say(f"bastion: removed root from {of}; bastion and bucket replace it")
    write_user_config(_with(config, profile, section))
    where = f"profile {profile} of {config_path()}" if profile else str(config_path())
    say(f"{key} is {'no longer set' if not value else plain(section[key])} in {where}")
    return 0


def _with(config: UserConfig, profile: str, section: dict[str, str]) -> UserConfig:
    if not profile:
        return replace(config, settings=section)
    if not section and config.active == profile:
        raise Refused(
            f"this is the last setting of the profile {profile}, which is active; activate another one first: bastion "
            "config activate NAME, or bastion config activate ''"
        )
    return replace(config, profiles={**config.profiles, profile: section})


def _checked(key: str, value: str) -> str:
    """The value in the form to store, valid in any folder."""
    if plain(value) != value:
        raise Refused(f"the value of {key} contains control characters")
    if key in ("root", "quota_root"):
        return parse_root(value).url
    if key == "bucket":
        return parse_root(f"{value.rstrip('/')}/any-bastion").bucket
    if key == "proxy":
        KeyMapping.parse(value, called=key)
    if key == "bastion":
        return parse_root(f"/{value}").bastion
    return value


def _activate(call: Invocation) -> int:
    name = call.operands[0]
    config = read_user_config()
    if name:
        config.require(check_profile(name), "this command")
    write_user_config(replace(config, active=name))
    say(f"profile {name} is active" if name else "no profile is active")
    found = settings()  # may refuse what another level says here
    root = plain(configured(found).root.url)
    if (found.profile.value if found.profile else "") == name:
        say(f"commands use {root}")
    else:
        assert found.profile is not None  # only another level's profile makes a difference
        say(
            f"here, {plain(found.profile.source)} chooses the profile {plain(found.profile.value)}: commands use {root}"
        )
    return 0


def _list(call: Invocation) -> int:
    found = settings()
    rows = list(_profiles(found))
    if call.json:
        emit_json(
            {
                "format": _FORMAT,
                "profiles": [
                    {"name": name, "in_use": used, "root": root, "settings": dict(found.user.profiles[name])}
                    for name, used, root in rows
                ],
                "chosen_by": found.profile.source if found.profile else None,
            }
        )
        return 0
    if not rows:
        say("no profiles; make one: bastion config set --profile=NAME root URL")
        return 0
    cells = [
        ("*" if used else "", name, root, found.user.profiles[name].get("project_id", "")) for name, used, root in rows
    ]
    print(table(("", "PROFILE", "ROOT", "PROJECT"), cells), end="")
    if found.profile is not None:
        say(f"* in use, chosen by {plain(found.profile.source)}")
    return 0


def _profiles(found: Settings) -> Iterator[tuple[str, bool, str]]:
    """Of each profile its name, whether it is in use, and its bastion; empty if that is not complete."""
    for name, section in found.user.profiles.items():
        alone = {**{key: Setting(value, "") for key, value in found.user.settings.items()}}
        if "root" in section or "bastion" in section:
            alone = {key: each for key, each in alone.items() if key not in ("root", "bastion")}
        alone |= {key: Setting(value, name) for key, value in section.items()}
        try:
            root = configured(replace(found, found=alone)).root.url
        except Refused:
            root = ""
        yield name, found.profile is not None and found.profile.value == name, root


def _explain(call: Invocation) -> int:
    found, target = settings(), resolve(call.flags)
    rows = list(_explained(found, target))
    if call.json:
        emit_json(
            {
                "format": _FORMAT,
                "home": str(bastion_home()),
                "file": str(config_path()),
                "project_file": str(found.project.path) if found.project.path else None,
                "settings": {key: {"value": value, "from": source} for key, value, source in rows},
            }
        )
        return 0
    print(table(("SETTING", "VALUE", "FROM"), rows), end="")
    return 0


def _explained(found: Settings, target: Target) -> Iterator[tuple[str, str, str]]:
    yield "home", str(bastion_home()), "$BASTION_HOME, or its default"
    yield "root", target.root.url, "the default: the bastion on this machine" if target.is_default else target.source
    if found.profile is not None:
        yield "profile", found.profile.value, found.profile.source
    for key in CONFIG_KEYS:
        setting = found.found.get(key)
        if key in ("root", "bastion", "bucket"):
            continue  # they make the root
        if setting is not None:
            yield key, setting.value, setting.source
        elif key == "user_id":
            yield key, default_user(), "the login name"


_KEYS = "\n\n".join(f"{key}: {meaning}." for key, meaning in CONFIG_KEYS.items())

SET = Command(
    summary="Sets a key of your config, or of a profile; an empty VALUE removes it.",
    usage="KEY VALUE [--profile=NAME]",
    details=f"""The keys:\n\n{_KEYS}\n\nA profile's settings override those that are set without --profile. A profile
        whose last setting is removed is gone. `bastion config explain` shows what is in force.""",
    examples=(
        "bastion config set root gs://my-bucket/team-bastion",
        "bastion config set --profile=research root gs://labs/research-bastion",
        "bastion config set project_id ''",
    ),
    operands=(2, 2),
    takes_target=False,
    define=_define_set,
    run=_set,
)
ACTIVATE = Command(
    summary="Chooses the profile that your commands use.",
    usage="NAME",
    details="""Until the next activate, in all shells. $BASTION_PROFILE chooses another one in one shell, and a
        project's `.bastion.toml` in its folder. An empty NAME: none.""",
    examples=("bastion config activate research", "bastion config activate ''"),
    operands=(1, 1),
    takes_target=False,
    run=_activate,
)
LIST = Command(
    summary="Lists your profiles and their bastions.",
    usage="[--output=json]",
    examples=("bastion config list",),
    takes_target=False,
    takes_output=True,
    run=_list,
)
EXPLAIN = Command(
    summary="Shows the settings in force, and who set each.",
    usage="[--output=json]",
    details="""From the highest to the lowest: flags; $BASTION_ROOT and $BASTION_PROFILE; the project's `.bastion.toml`;
        the profile; what is set for all profiles.

        `.bastion.toml` is looked for in the current folder and those above it, up to that of the repository. It may set
        `profile` and `project_id`. It comes with code, perhaps of others, so it never says where your jobs go: the
        profile that it names is yours. With $BASTION_ROOT, which jobs have, it is not read.""",
    examples=("bastion config explain", "bastion config explain --root=gs://my-bucket/team-bastion"),
    takes_output=True,
    run=_explain,
)
