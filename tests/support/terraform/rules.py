"""What holds for every Terraform configuration of this repository. Each rule returns its findings as messages."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.terraform.configuration import (
    Body,
    Declared,
    Module,
    arguments,
    blocks,
    expressions,
    unquoted,
)
from tests.support.terraform.schema import Block, Schema

Modules = dict[Path, Module]

_META = {"for_each", "count", "provider", "depends_on", "lifecycle", "provisioner", "connection"}
_RESOURCE = re.compile(
    r"(?<![\w.])(data\.)?((?:google|aws|helm)_\w+)\.(\w+)(?:\[(?:[^\[\]]|\[[^\[\]]*\])*\])?(?:\.(\w+))?"
)
_POOLS = ("google_container_node_pool", "aws_eks_node_group")


def documented(modules: Modules) -> Iterator[str]:
    """Every variable has a type and a description; every output a description."""
    for module in modules.values():
        for name, variable in module.variables.items():
            for key in ("type", "description"):
                if not unquoted(variable.body.get(key, "")).strip():
                    yield f"{variable.place}: the variable {name} has no {key}"
        for name, output in module.outputs.items():
            if not unquoted(output.body.get("description", "")).strip():
                yield f"{output.place}: the output {name} has no description"


def pinned(modules: Modules) -> Iterator[str]:
    """Terraform, providers and charts have versions; modules are in this repository."""
    for module in modules.values():
        stated = [one for declared in module.settings for one in [declared.body]]
        if not any("required_version" in body for body in stated):
            yield f"{module.folder.name}: no required_version"
        required = {
            name: value
            for body in stated
            for _, inner in blocks(body)
            for name, value in arguments(inner)
            if isinstance(value, dict) and "source" in value
        }
        used = {type_.partition("_")[0] for _, type_, _ in module.resources}
        for name in sorted(used - required.keys()):
            yield f"{module.folder.name}: the provider {name} has no source and version in required_providers"
        for name, value in required.items():
            if not re.fullmatch(r"~> \d+\.\d+|\d+\.\d+\.\d+", unquoted(value.get("version", ""))):
                yield f"{module.folder.name}: the provider {name} must be pinned as ~> N.N"
        for (_, type_, _), resource in module.resources.items():
            local = unquoted(resource.body.get("chart", "")).endswith("/chart")
            if type_ == "helm_release" and not local and "version" not in resource.body:
                yield f"{resource.place}: the chart has no version"
        for call in module.calls.values():
            if not unquoted(call.body["source"]).startswith(("./", "../")):
                yield f"{call.place}: the source is not a folder of this repository"


def pools_checked(modules: Modules) -> Iterator[str]:
    """Node pools have preconditions; TPU pools compare hosts with chips, and the machine with the accelerator."""
    for module in modules.values():
        for (_, type_, name), resource in module.resources.items():
            if type_ not in _POOLS:
                continue
            lifecycle = [inner for key, inner in blocks(resource.body) if key == "lifecycle"]
            conditions = [
                str(condition["condition"])
                for inner in lifecycle
                for key, condition in blocks(inner)
                if key == "precondition"
            ]
            if not conditions:
                yield f"{resource.place}: the pool has no precondition"
            elif name == "tpu":
                if not any("hosts" in text and "chips" in text for text in conditions):
                    yield f"{resource.place}: no precondition compares the hosts with the topology's chips"
                if not any("machine_type" in text and "accelerator" in text for text in conditions):
                    yield f"{resource.place}: no precondition compares the machine type with the accelerator"


def storage_roles(modules: Modules) -> Iterator[str]:
    """No role for storage, and no basic role, on a project or above; on AWS, no action on every bucket."""
    wide = re.compile(r"google_(project|folder|organization)_iam_(member|binding|policy|audit_config)")
    for module in modules.values():
        for (_, type_, _), resource in module.resources.items():
            text = " ".join(expressions(resource.body))
            role = unquoted(resource.body.get("role", ""))
            if wide.fullmatch(type_):
                if re.search(r"roles/(storage|owner|editor|viewer)\b", text):
                    yield f"{resource.place}: {role} on a whole project; grant it on the bucket or a managed folder"
                elif not re.fullmatch(r"roles/[\w.]+|\$\{google_project_iam_custom_role\.\w+\.id\}", role):
                    yield f"{resource.place}: the role must be written out, or a custom role of this module"
            if re.search(r"(AmazonS3FullAccess|AdministratorAccess|PowerUserAccess)", text):
                yield f"{resource.place}: a policy for every bucket of the account"
            yield from _aws_actions(resource)


def _aws_actions(resource: Declared) -> Iterator[str]:
    for name, statement in blocks(resource.body):
        if name != "statement":
            continue
        actions = [unquoted(action) for action in expressions(statement.get("actions", []))]
        everywhere = "*" in [unquoted(one) for one in expressions(statement.get("resources", []))]
        for action in actions:
            if action in {"*", "s3:*"} or (action.startswith("s3:") and everywhere):
                where = "every bucket" if everywhere else "a bucket"
                yield f"{resource.place}: {action} on {where}; name actions and buckets"
    for text in expressions(resource.body):
        if re.search(r'Action"?\s*[=:]\s*\[?\s*"(\*|s3:\*)"', text):
            yield f"{resource.place}: every action of S3; name actions and buckets"


def arguments_exist(modules: Modules, schemas: dict[str, Schema]) -> Iterator[str]:
    """Every argument and block is one of the provider's, and those that it requires are there."""
    for module in modules.values():
        for (kind, type_, _), resource in module.resources.items():
            schema = schemas[type_.partition("_")[0]].blocks.get(f"{kind}.{type_}")
            if schema is None:
                yield f"{resource.place}: the type is not in tests/deploy/schema; run `make terraform-schema`"
            else:
                yield from _compare(resource.place, resource.body, schema, _META)
        for name, provider in module.providers.items():
            yield from _compare(provider.place, provider.body, schemas[name].blocks[f"provider.{name}"], {"alias"})


def _compare(place: str, body: Body, schema: Block, meta: set[str]) -> Iterator[str]:
    known = [*(name for name, one in schema.attributes.items() if one.settable), *schema.blocks]
    given = set()
    for name, value in arguments(body):
        given.add(name)
        attribute = schema.attributes.get(name)
        if name in meta:
            continue
        if name in schema.blocks:
            yield f"{place}: {name} is a block, written without ="
        elif attribute is None or not attribute.settable:
            yield f"{place}: there is no argument {name}{_near(name, known)}"
        elif attribute.fields and isinstance(value, dict):
            for key in value:
                if not key.startswith("__") and unquoted(key) not in attribute.fields:
                    yield f"{place}: {name} has no field {unquoted(key)}{_near(unquoted(key), list(attribute.fields))}"
    for name, inner in blocks(body):
        given.add(name)
        if name in schema.blocks:
            yield from _compare(f"{place}.{name}", inner, schema.blocks[name], set())
        elif name not in meta:
            yield f"{place}: there is no block {name}{_near(name, known)}"
    required = [name for name, one in (*schema.attributes.items(), *schema.blocks.items()) if one.required]
    yield from (f"{place}: {name} is missing" for name in sorted(set(required) - given))


def _near(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else ""


def references_exist(modules: Modules, schemas: dict[str, Schema]) -> Iterator[str]:
    """Variables, local values, modules' outputs, resources and their attributes that expressions name exist."""
    for module in modules.values():
        for declared in module.declared():
            for text in expressions({key: value for key, value in declared.body.items() if key != "description"}):
                yield from (f"{declared.place}: {fault}" for fault in _unknown(text, module, modules, schemas))


def _unknown(text: str, module: Module, modules: Modules, schemas: dict[str, Schema]) -> Iterator[str]:
    for name in re.findall(r"(?<![\w.])var\.(\w+)", text):
        if name not in module.variables:
            yield f"there is no variable {name}{_near(name, list(module.variables))}"
    for name in re.findall(r"(?<![\w.])local\.(\w+)", text):
        if name not in module.local_values:
            yield f"there is no local value {name}{_near(name, list(module.local_values))}"
    for name, output in re.findall(r"(?<![\w.])module\.(\w+)(?:\[[^\]]*\])?(?:\.(\w+))?", text):
        if name not in module.calls:
            yield f"there is no module {name}{_near(name, list(module.calls))}"
        elif output and output not in (called := modules[_source(module, name)].outputs):
            yield f"the module {name} has no output {output}{_near(output, list(called))}"
    for data, type_, name, attribute in _RESOURCE.findall(text):
        kind = "data" if data else "resource"
        if (kind, type_, name) not in module.resources:
            yield f"there is no {kind} {type_}.{name}"
            continue
        block = schemas[type_.partition("_")[0]].blocks.get(f"{kind}.{type_}")
        if attribute and block and attribute not in (known := [*block.attributes, *block.blocks]):
            yield f"{type_} has no attribute {attribute}{_near(attribute, known)}"


def inputs_given(modules: Modules) -> Iterator[str]:
    """Calls of modules give every input without a default, and no others than there are."""
    for module in modules.values():
        for name, call in module.calls.items():
            variables = modules[_source(module, name)].variables
            given = {key for key, _ in arguments(call.body)} - {
                "source",
                "depends_on",
                "for_each",
                "count",
                "providers",
            }
            for key in sorted(given - variables.keys()):
                yield f"{call.place}: the module has no variable {key}{_near(key, list(variables))}"
            for key in sorted(key for key, one in variables.items() if "default" not in one.body and key not in given):
                yield f"{call.place}: {key} is missing"


def _source(module: Module, call: str) -> Path:
    return (module.folder / unquoted(module.calls[call].body["source"])).resolve()


def all_findings(modules: Modules, schemas: dict[str, Schema]) -> list[str]:
    return [
        *documented(modules),
        *pinned(modules),
        *pools_checked(modules),
        *storage_roles(modules),
        *arguments_exist(modules, schemas),
        *references_exist(modules, schemas),
        *inputs_given(modules),
    ]
