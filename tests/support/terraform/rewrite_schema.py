"""`make terraform-schema`: writes tests/deploy/schema from the wheels in the folder BASTION_TERRAFORM_BINDINGS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tests.support.terraform import configuration, schema
from tests.support.terraform.binding import Binding

REPOSITORY = Path(__file__).resolve().parents[3]
SCHEMA = REPOSITORY / "tests" / "deploy" / "schema"


def derived(bindings: Path) -> Iterator[tuple[Path, str]]:
    """Each table with the text that follows from its binding and from the types in use."""
    used: dict[str, set[str]] = {"resource": set(), "data": set()}
    for module in configuration.load(REPOSITORY / "deploy" / "terraform").values():
        for kind, type_, _ in module.resources:
            used[kind].add(type_)
    for requirement in (SCHEMA / "bindings.txt").read_text("utf-8").split():
        package, _, version = requirement.partition("==")
        provider = package.rpartition("-")[2]
        binding = Binding(bindings / f"{package.replace('-', '_')}-{version}-py3-none-any.whl", provider)
        types = {kind: {one for one in names if one.startswith(f"{provider}_")} for kind, names in used.items()}
        yield SCHEMA / f"{provider}.txt", schema.dump(binding.schema(types["resource"], types["data"]))


if __name__ == "__main__":
    for path, text in derived(Path(os.environ["BASTION_TERRAFORM_BINDINGS"])):
        path.write_text(text, "utf-8")
