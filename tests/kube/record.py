"""Record the real API server's answers to the corpus: `make kube-record` after `make kube`.

`python -m tests.kube.record [SCENARIO...]`: with names only those are recorded. Review the diff.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from tests.kube.real_server import RealServer, missing
from tests.kube.runner import Runner
from tests.kube.scenarios import RECORDED, Scenario, scenarios


def to_real(scenario: Scenario) -> Scenario:
    """The scenario without what the real server of `make kube` cannot answer."""
    return dataclasses.replace(scenario, steps=tuple(step for step in scenario.steps if not step.excluded))


def main(names: list[str]) -> int:
    absent = missing()
    if absent:
        print(absent, file=sys.stderr)
        return 1
    unknown = set(names) - {scenario.name for scenario in scenarios()}
    if unknown:
        print(f"no such scenario: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    RECORDED.mkdir(exist_ok=True)
    with RealServer() as server:
        _, version = server.request("GET", "/version")
        runner = Runner(server, server.restart)
        for scenario in scenarios():
            if names and scenario.name not in names:
                continue
            answers = runner.run(to_real(scenario))
            document = {"server": version["gitVersion"], "answers": answers}
            path = RECORDED / f"{scenario.name}.json"
            path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
            print(f"{scenario.name}: {len(answers)} answers")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
