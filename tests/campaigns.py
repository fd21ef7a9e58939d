"""How far campaigns go, and what of them is done: as `make check` has them, or with KVCODEC_SOAK=1 as `make soak`."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

ROOT = Path(__file__).resolve().parent.parent
SOAK = os.environ.get("KVCODEC_SOAK") == "1"


def times(check: int, soak: int) -> int:
    """How much of something a campaign does."""
    return soak if SOAK else check


def short(examples: int) -> settings:
    """How a state machine runs in `make test`."""
    return settings(
        max_examples=examples, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
    )


def run_shard(machine: type[RuleBasedStateMachine], shard: int, steps: int) -> None:
    """One share of a state machine's campaign: 20 times so many steps, of which no other shard has the same."""
    own = seed(shard)(type(machine.__name__, (machine,), {}))
    long = settings(short(20), stateful_step_count=steps, derandomize=False, database=None)
    run_state_machine_as_test(own, settings=long)


def state_of_the_code() -> str:
    """A digest of the package and its tests."""
    found = hashlib.sha256()
    for path in sorted([*ROOT.glob("kvcodec/**/*.py"), *ROOT.glob("tests/**/*.py")]):
        found.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


class Passed:
    """Names of tests that have passed with the code as it is, in a file to which they are added as they pass."""

    def __init__(self, path: Path) -> None:
        self._path, state = path, state_of_the_code()
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.names = lines[1:] if lines and lines[0] == state else []
        if not self.names:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(state + "\n", encoding="utf-8")

    def add(self, name: str) -> None:
        """One more. Names are whole lines, or the last one is not there."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(name + "\n")
        self.names.append(name)

    def summary(self) -> list[str]:
        """How many tests of each function have passed, a line each."""
        counts = Counter(name.partition("[")[0] for name in self.names)
        return [f"{count:6} {name}" for name, count in sorted(counts.items())]
