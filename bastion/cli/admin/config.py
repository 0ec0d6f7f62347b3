"""`bastion config set|show`: the user config."""

from __future__ import annotations

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, plain, say
from bastion.cli.parsing import did_you_mean
from bastion.cli.target import resolve
from bastion.cli.user_config import CONFIG_KEYS, bastion_home, config_path, read_config, write_config
from bastion.core.encryption.key_mapping import KeyMapping
from bastion.core.errors import Refused
from bastion.wiring.roots import parse_root


def _set(call: Invocation) -> int:
    key, value = call.operands
    if key not in CONFIG_KEYS:
        raise Refused(
            f"unknown config key {plain(key)!r}{did_you_mean(key, CONFIG_KEYS)} (keys: {', '.join(CONFIG_KEYS)})"
        )
    config = dict(read_config())
    if not value:
        config.pop(key, None)
    else:
        config[key] = _checked(key, value)
    # `root` and `bastion` name the bastion in two ways; keep only one.
    if value and key == "root" and "bastion" in config:
        del config["bastion"]
        say("bastion: removed bastion from your config; root replaces it")
    if value and key == "bastion" and "root" in config:
        del config["root"]
        say("bastion: removed root from your config; bastion and bucket replace it")
    write_config(config)
    say(f"{key} is {'no longer set' if not value else plain(config[key])} in {config_path()}")
    return 0


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


def _show(call: Invocation) -> int:
    config = read_config()
    target = resolve(call.flags)
    if call.json:
        emit_json(
            {
                "home": str(bastion_home()),
                "file": str(config_path()),
                "settings": dict(config),
                "root": target.root.url,
                "root_from": target.source,
            }
        )
        return 0
    print(f"home  {bastion_home()}")
    print(f"root  {plain(target.root.url)} ({'the default' if target.is_default else f'from {plain(target.source)}'})")
    for key, value in config.items():
        print(f"{key} = {plain(value)}")
    return 0


_KEYS = "\n\n".join(f"{key}: {meaning}." for key, meaning in CONFIG_KEYS.items())

SET = Command(
    summary="Sets a key of your config; an empty VALUE removes it.",
    usage="KEY VALUE",
    details=f"The keys:\n\n{_KEYS}\n\nFlags and $BASTION_ROOT override them.",
    examples=("bastion config set root gs://my-bucket/team-bastion", "bastion config set project_id ''"),
    operands=(2, 2),
    takes_target=False,
    run=_set,
)
SHOW = Command(
    summary="Shows your config, and which bastion the commands use and why.",
    usage="[--output=json]",
    examples=("bastion config show",),
    takes_output=True,
    run=_show,
)
