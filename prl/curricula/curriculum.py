"""Which task comes next, and which groups train: one sampler and any number of gates."""

import copy
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Protocol, runtime_checkable

from prl.types import Group, Task


@runtime_checkable
class TaskSampler(Protocol):
    """Chooses tasks and observes every finished group, rejected ones too."""

    def sample(self, tasks: Sequence[Task], draw: int, rng: Random) -> Task: ...
    def observe(self, group: Group) -> None: ...
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> None: ...
    def metrics(self) -> Mapping[str, float]: ...


@runtime_checkable
class AdmissionGate(Protocol):
    """Says whether a scored group trains."""

    def admit(self, group: Group) -> bool: ...
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> None: ...
    def metrics(self) -> Mapping[str, float]: ...


class StandardSampler:
    """Tasks in source order, from the start again at the end. Has no state: the draw number says it all."""

    def sample(self, tasks: Sequence[Task], draw: int, rng: Random) -> Task:
        """Task number draw modulo their count."""
        return tasks[draw % len(tasks)]

    def observe(self, group: Group) -> None:
        """Order does not depend on results."""

    def state_dict(self) -> Any:
        """Empty."""
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Nothing to load."""

    def metrics(self) -> Mapping[str, float]:
        """None."""
        return {}


class Curriculum:
    """One task sampler and named gates; a group trains only if every gate admits it.

    Source: algorithms page, "Curricula".
    """

    def __init__(self, sampler: TaskSampler | None = None, gates: Mapping[str, AdmissionGate] | None = None) -> None:
        self.sampler: TaskSampler = StandardSampler() if sampler is None else sampler
        self.gates = dict(gates or {})

    def at(self, state: Any) -> "Curriculum":
        """A copy in the given state; None is the state at the start."""
        fresh = copy.deepcopy(self)
        if state is not None:
            fresh.load_state_dict(copy.deepcopy(state))
        return fresh

    def admit(self, group: Group) -> bool:
        """Ask every gate, also after a refusal: gates may keep statistics."""
        return all([gate.admit(group) for gate in self.gates.values()])

    def state_dict(self) -> Any:
        """States of the sampler and of each gate."""
        return {"sampler": self.sampler.state_dict(), "gates": {k: g.state_dict() for k, g in self.gates.items()}}

    def load_state_dict(self, state: Any) -> None:
        """Put the sampler and each gate into a saved state."""
        self.sampler.load_state_dict(state["sampler"])
        for name, gate in self.gates.items():
            gate.load_state_dict(state["gates"][name])

    def metrics(self) -> dict[str, float]:
        """Metrics of the sampler, and of each gate under its name."""
        gates = {f"{name}/{k}": v for name, gate in self.gates.items() for k, v in gate.metrics().items()}
        return {**self.sampler.metrics(), **gates}
