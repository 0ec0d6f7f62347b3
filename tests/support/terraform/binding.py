"""The argument names and types of Terraform providers, read from their published CDKTF bindings.

A binding is a wheel of `tests/deploy/schema/bindings.txt`. It holds generated JavaScript whose source maps embed the
generated TypeScript: one folder for each resource type. Comments say of each attribute whether it is computed, optional
or required; the functions `synthesizeHclAttributes` and `...ToHclTerraform` give the types. Only these are kept.
"""

from __future__ import annotations

import base64
import io
import json
import re
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from tests.support.terraform.schema import Attribute, Block, Kind, Schema

_CLASS = re.compile(r"^export class (\w+) extends .*?^}$", re.M | re.S)
_FUNCTION = re.compile(r"^export function (\w+)ToHclTerraform\(.*?^}$", re.M | re.S)
_STATED = re.compile(
    r"^ +// (\w+) - computed: (\w+), optional: (\w+), required: (\w+)\n(.*?)(?=^ +// \w+ - computed|^ +// ===|\Z)",
    re.M | re.S,
)
_ARGUMENT = re.compile(
    r"^ +(\w+): \{\n +value: (.*),\n +isBlock: (\w+),\n +type: \"(\w+)\",\n +storageClassType: \"(\w+)\"", re.M
)
_NESTED = re.compile(r"= new (\w+)\(this, \"(\w+)\"")
_SIMPLE = {"string": "s", "number": "n", "boolean": "b"}
_GETTERS = {"String": "s", "Number": "n", "Boolean": "b"}


class Binding:
    """One provider's binding."""

    def __init__(self, wheel: Path, provider: str) -> None:
        self.provider = provider
        self._wheel = wheel
        self._sources: dict[str, list[str]] = {}

    def schema(self, resources: Iterable[str], data: Iterable[str]) -> Schema:
        """Return what the provider accepts for these types. Raises KeyError for one that it does not have."""
        folders = {f"resource.{name}": name.removeprefix(f"{self.provider}_").replace("_", "-") for name in resources}
        for name in data:
            folders[f"data.{name}"] = f"data-{name.replace('_', '-')}"
        version = self._unpack({"provider", *folders.values()})
        provider = self._block("provider", self.provider)
        for name in [name for name in provider.attributes if name.endswith("_custom_endpoint")]:
            del provider.attributes[name]  # a hundred of them, which nobody here sets
        found = {f"provider.{self.provider}": provider}
        for path, folder in sorted(folders.items()):
            found[path] = self._block(folder, path.partition(".")[2])
        return Schema(provider=self.provider, version=version, blocks=found)

    def _unpack(self, folders: set[str]) -> str:
        """Keep the TypeScript of these folders, in one pass: large types are spread over files. Return the version."""
        version = ""
        with zipfile.ZipFile(self._wheel) as package:
            (inner,) = (name for name in package.namelist() if name.endswith(".tgz"))
            content = io.BytesIO(package.read(inner))
        with tarfile.open(fileobj=content) as archive:
            for member in archive:
                _, top, *rest = [*member.name.split("/"), "", ""]
                wanted = top == "package.json" or (top == "lib" and rest[0] in folders and member.name.endswith(".js"))
                file = archive.extractfile(member) if wanted else None
                if file is None:
                    continue
                text = file.read().decode()
                if top == "package.json":
                    version = json.loads(text)["cdktf"]["provider"]["version"]
                else:
                    encoded = text.rpartition("base64,")[2]
                    self._sources.setdefault(rest[0], []).extend(
                        json.loads(base64.b64decode(encoded)).get("sourcesContent", [])
                    )
        return version

    def _block(self, folder: str, name: str) -> Block:
        source = "".join(self._sources[folder])
        classes = {match[1]: match[0] for match in _CLASS.finditer(source)}
        functions = {match[1].lower(): match[0] for match in _FUNCTION.finditer(source)}
        main = next(text for text in classes.values() if f'tfResourceType = "{name}"' in text)
        return _read(main, main[main.index("synthesizeHclAttributes") :], classes, functions)


def _read(text: str, arguments: str, classes: dict[str, str], functions: dict[str, str]) -> Block:
    given = {match[1]: match for match in _ARGUMENT.finditer(arguments)}
    attributes: dict[str, Attribute] = {}
    blocks: dict[str, Block] = {}
    for name, *marks, rest in _STATED.findall(text):
        computed, optional, required = (mark == "true" for mark in marks)
        argument, nested = given.get(name), _NESTED.search(rest)
        if argument is None:
            getter = re.search(r"this\.get(\w+)Attribute\(", rest)
            attributes[name] = Attribute(_GETTERS.get(getter[1] if getter else "", "any"), computed=True)
        elif argument[3] == "true":
            inner = _inside(nested[1] if nested else "", argument, classes, functions)
            if _is_block(argument):
                blocks[name] = Block(inner.attributes, inner.blocks, _kind(nested, argument), required)
            else:
                attributes[name] = Attribute("any", required, optional, computed, frozenset(inner.attributes))
        else:
            attributes[name] = Attribute(_type(argument), required, optional, computed)
    return Block(attributes, blocks)


def _is_block(argument: re.Match[str]) -> bool:
    """Whether it is written NAME {}, not NAME = {}. Lists say so; of single ones only `timeouts` is a block."""
    if "Mapper" in argument[2]:
        return ", true)" in argument[2]
    return argument[4] != "struct" or argument[1] == "timeouts"


def _inside(reference: str, argument: re.Match[str], classes: dict[str, str], functions: dict[str, str]) -> Block:
    stem = reference.removesuffix("OutputReference").removesuffix("List")
    if stem:
        return _read(classes.get(f"{stem}OutputReference", ""), functions.get(stem.lower(), ""), classes, functions)
    # Nested in a provider: no class, so nothing says what is required.
    function = re.search(r"(\w+)ToHclTerraform", argument[2])
    body = functions.get(function[1].lower(), "") if function else ""
    return Block({match[1]: Attribute(_type(match), optional=True) for match in _ARGUMENT.finditer(body)})


def _kind(nested: re.Match[str] | None, argument: re.Match[str]) -> Kind:
    if argument[4] == "struct":
        return Kind.SINGLE
    if nested and nested[1].endswith("OutputReference"):
        return Kind.ONE
    return Kind.SET if argument[4] == "set" else Kind.LIST


def _type(argument: re.Match[str]) -> str:
    shape, of = argument[4], argument[5]
    if shape == "simple":
        return _SIMPLE.get(of, "any")
    element = _SIMPLE.get(of.removesuffix("List").removesuffix("Map"), "")
    return {"list": "l", "set": "e", "map": "m"}[shape] + element if element else "any"
