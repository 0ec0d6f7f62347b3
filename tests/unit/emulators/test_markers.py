"""What emulated hosts have of the environment around them."""

from __future__ import annotations

from bastion.emulators.markers import inherited

KEYS = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"), "x")


def test_a_server_on_this_machine_is_reached_with_all_of_its_keys() -> None:
    assert inherited({**KEYS, "PATH": "x"}) == {}
    assert inherited({**KEYS, "PATH": "x", "AWS_ENDPOINT_URL": "http://localhost"}) == {
        **KEYS,
        "AWS_ENDPOINT_URL": "http://localhost",
    }
