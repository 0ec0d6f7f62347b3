"""`docs/how-to/run-on-kubernetes.md`: commands, settings, permissions and quoted messages are the program's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import bastion
from bastion.adapters.kubernetes import hardware, permissions
from bastion.cli import parsing
from bastion.core.model import daemon_settings, instance_types
from tests.support import page_commands

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = (REPOSITORY / "docs" / "how-to" / "run-on-kubernetes.md").read_text("utf-8")

# Of every gcloud command on the page the flags that it may be given, as gcloud 528 has them.
IN_PROJECT = frozenset({"--project", "--location"})
POOL = frozenset({"--machine-type", "--num-nodes"})
GCLOUD = {
    "services enable": {"--project"},
    "container clusters create": IN_PROJECT | POOL | {"--release-channel", "--workload-pool"},
    "container clusters get-credentials": IN_PROJECT,
    "container node-pools create": IN_PROJECT
    | POOL
    | {"--cluster", "--node-locations", "--tpu-topology", "--workload-metadata", "--spot", "--node-taints"}
    | {"--accelerator"},
    "iam workload-identity-pools create": IN_PROJECT,
    "iam workload-identity-pools providers create-oidc": IN_PROJECT
    | {"--workload-identity-pool", "--issuer-uri", "--attribute-mapping"},
    "storage cp": set(),
}
# Named in the text, not in a block.
IN_WORDS = {
    "container node-pools create": {"--reservation-affinity", "--reservation", "--flex-start", "--enable-autoscaling"},
    "iam workload-identity-pools providers create-oidc": {"--jwk-json-path"},
}


def section(heading: str) -> str:
    return PAGE.partition(f"\n{heading}\n")[2].partition(f"\n{heading.split()[0]} ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of a section's tables, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines][1:]


def test_every_bastion_command_is_given_flags_and_operands_that_it_takes() -> None:
    lines = page_commands.commands(PAGE, "bastion")
    assert {" ".join(words[:2]) for words in lines} >= {"local up", "kubernetes manifest", "daemon check-config"}
    for words in lines:
        entry, count = parsing.find(words)
        parsing.parse(entry.name, entry.load(), words[count:])


def test_every_gcloud_command_is_given_flags_that_it_has() -> None:
    lines = page_commands.commands(PAGE, "gcloud")
    for words in lines:
        assert page_commands.flags_of(words) <= set(GCLOUD[page_commands.gcloud_name(words, GCLOUD)]), words
    assert {page_commands.gcloud_name(words, GCLOUD) for words in lines} == set(GCLOUD)
    assert [flag for flags in IN_WORDS.values() for flag in flags if flag not in PAGE] == []


def test_the_flags_are_those_of_the_installed_gcloud() -> None:
    tree = page_commands.gcloud_completions()
    if tree is None:
        pytest.skip("gcloud is not installed here")
    for name, flags in [*GCLOUD.items(), *IN_WORDS.items()]:
        assert set(flags) <= page_commands.flags_that_gcloud_has(tree, name), name


def test_the_settings_on_the_page_are_valid() -> None:
    first, second = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert set(daemon_settings.load(first.encode()).clusters) == {"here"}
    both = daemon_settings.load(first.replace("[clusters.here]", f"{second}\n[clusters.here]").encode()).clusters
    assert both["lab"].agent_image
    assert both["lab"].workload_identity_provider.endswith("/team-pool/providers/team-lab")


def test_the_table_of_permissions_is_that_of_the_manifest() -> None:
    text = section("### The daemon")
    for permission in permissions.IN_NAMESPACE:
        (row,) = [cells[1] for cells in rows(text) if f"`{permission.resource}`" in cells[1]]
        named = row.partition(" `")[0].replace(",", "").split()
        assert tuple(named) == permission.verbs, permission.resource
    assert f"get the namespace `{permissions.IDENTITY_NAMESPACE}`" in text


def test_every_machine_type_of_a_cluster_is_named() -> None:
    types = {each.gke_machine_type for each in instance_types.table().values() if each.on_kubernetes}
    text = section("### Node pools")
    for name in types:
        family, _, size = name.rpartition("-")
        assert f"`{name}`" in text or (f"`{family}-" in text and f"`-{size}`" in text), name


def test_the_labels_of_tiers_are_those_that_pods_ask_for() -> None:
    source = Path(hardware.__file__).read_text("utf-8")
    labels = re.findall(r"`(cloud\.google\.com/[a-z-]+)=", section("### Node pools"))
    assert labels
    assert [label for label in labels if label not in source] == []


def test_every_message_that_the_page_quotes_is_in_the_program() -> None:
    """What stands for something else is in capitals or dots."""
    package = Path(bastion.__file__).parent
    files = [*package.rglob("*.py"), *package.rglob("*.sh")]
    sources = [re.sub(r'"\s*\n\s*f?r?"', "", file.read_text("utf-8")) for file in files]
    quoted = [
        text for cells in rows(section("## When something is wrong")) for text in re.findall(r"`([^`]+)`", cells[1])
    ]
    assert len(quoted) > 10
    pieces = [piece.strip(" :;") for text in quoted for piece in re.split(r"\.\.\.|\b[A-Z]{4,}\b", text)]
    missing = [piece for piece in pieces if len(piece) > 3 and not any(piece in source for source in sources)]
    assert missing == []
