"""The jobs of the long run: what each does, drawn from a seed, and what it leaves behind for the checks."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

BURST = 10
_PAUSE_SECONDS = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class LongJob:
    """One job.

    Attributes:
        bursts: So many times each host prints `BURST` lines.
        fails_on: Host that exits with 3 after its lines; None: all exit with 0.
        tries: How many tries it has; with two, only the first one fails.
        cancelled_after: Seconds after its submission at which its user cancels it; None: never.
    """

    name: str
    project: str
    instance_type: str
    num_replicas: int
    bursts: int
    fails_on: int | None
    tries: int
    cancelled_after: float | None

    @property
    def hosts(self) -> int:
        return int(self.instance_type.rpartition("-")[2]) // 8 * self.num_replicas

    @property
    def lines(self) -> int:
        return self.bursts * BURST

    @property
    def exit_code(self) -> int:
        """As it ends if nobody cancels it."""
        return 3 if self.fails_on is not None and self.tries == 1 else 0

    def command(self, witness: Path) -> str:
        """Prints numbered lines, and notes for the checks: every beginning, and how far each host came.

        A lock that is held as long as the command lives shows a second incarnation. The pause is a read that nobody
        answers: hundreds of `sleep` processes a second would slow everything down.
        """
        me = '"$BASTION_RUN"."$BASTION_TRY"."$BASTION_HOST_INDEX"'
        failure = ""
        if self.fails_on is not None:
            first = '[ "$BASTION_TRY" = 1 ] && ' if self.tries > 1 else ""
            failure = f'{first}[ "$BASTION_HOST_INDEX" = {self.fails_on} ] && exit 3; '
        return (
            f"cd {witness}; "
            f"echo {me} >> begun; exec 9> lock.{self.name}.$BASTION_HOST_INDEX; flock -n 9 || echo {me} >> twice; "
            "exec 8<> <(:); n=0; "
            f"while [ $n -lt {self.lines} ]; do "
            f'for i in {{1..{BURST}}}; do n=$((n+1)); echo "try $BASTION_TRY line $n"; done; '
            f"echo $n > printed.{me}; read -t {_PAUSE_SECONDS} -u 8; done; "
            f"{failure}exit 0"
        )


def draw_jobs(number: int, seed: int) -> list[LongJob]:
    """So many jobs; the same for the same seed."""
    chance = random.Random(seed)
    jobs = []
    for index in range(number):
        instance_type, replicas = chance.choices(
            [("tpu-v4-8", 1), ("tpu-v4-16", 1), ("tpu-v4-8", 2), ("tpu-v4-32", 1)], weights=[70, 12, 12, 6]
        )[0]
        hosts = int(instance_type.rpartition("-")[2]) // 8 * replicas
        fate = chance.random()
        jobs.append(
            LongJob(
                name=f"job-{index:03d}",
                project=chance.choice(["a", "b"]),
                instance_type=instance_type,
                num_replicas=replicas,
                bursts=chance.randrange(3, 10),
                fails_on=chance.randrange(hosts) if fate < 0.2 else None,
                tries=2 if fate < 0.1 else 1,
                cancelled_after=chance.uniform(0.0, 30.0 + 0.7 * number) if fate > 0.93 else None,
            )
        )
    return jobs
