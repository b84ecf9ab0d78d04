"""Keys of a training source: an environment, its agents, and what trains on it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from prl.algorithms import GRPO, OPD, OPSD, RAE, SFT, Echo, HierarchicalGRPO, MaxRL
from prl.config import FrozenModel
from prl.config.base import Frozen, unknown_key
from prl.toml.curricula import CurriculumTable

ROLES = {
    "math": ("agent",),
    "terminal": ("agent",),
    "kuhn-poker": ("player0", "player1"),
    "proposer-solver": ("proposer", "solver"),
}
"""Tasksets by name, with the roles of their environments."""
_PROPOSER_SOLVER = "proposer-solver"


class TasksetTable(Frozen):
    """Which problems an environment poses. The other keys are those of reasoning-gym tasks."""

    id: str = Field(min_length=1)
    """"math" (a mix of reasoning-gym tasks), any reasoning-gym task, "terminal", "kuhn-poker", "proposer-solver",
    a textarena id, or a verifiers module."""
    size: int = Field(default=10_000, ge=1)
    """Items drawn from the generator."""
    seed: int = 0
    """Seed of the generator."""
    test_share: float = Field(default=0.2, gt=0, lt=1)
    """Fraction of the questions held out as the test split."""
    exact: bool = False
    """Pay 1.0 for a full score and 0.0 for less, instead of partial credit."""
    config: dict[str, Any] = {}
    """The task's own settings, such as min_word_len = 3."""


class HarnessTable(Frozen):
    """What stands between an agent and its environment."""

    id: Literal["null", "bash"] = "null"
    """"null" for plain conversation, "bash" for a shell as a tool."""


class RuntimeTable(Frozen):
    """Where an agent's tools run."""

    type: Literal["subprocess"] = "subprocess"
    """A process beside this one, the only runtime of prl."""


class AgentTable(Frozen):
    """One role of an environment."""

    harness: HarnessTable = HarnessTable()
    """Its harness."""
    runtime: RuntimeTable = RuntimeTable()
    """Its runtime."""
    model: FrozenModel | None = None
    """A frozen model that speaks for it; absent means the policy, which learns from what it says."""


class EnvTable(Frozen):
    """An environment; every key besides those listed is a role with its agent's table."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, AgentTable]

    taskset: TasksetTable
    """Its problems."""
    n: int | None = Field(default=None, ge=1)
    """Solver attempts on each proposed problem, of proposer-solver; absent means its own number."""
    train_proposer: bool | None = None
    """Whether the proposer trains, of proposer-solver; absent means yes."""
    train_solver: bool | None = None
    """Whether the solvers train, of proposer-solver; absent means yes."""

    @model_validator(mode="before")
    @classmethod
    def _know_every_key(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        taskset = data.get("taskset")
        roles = ROLES.get(taskset.get("id", "")) if isinstance(taskset, Mapping) else None
        for key in sorted(set(data) - set(cls.model_fields)):
            if key not in roles if roles else not _is_agent(data[key]):
                raise ValueError(unknown_key("EnvTable", key, [*cls.model_fields, *(roles or ["agent"])]))
        return data

    @model_validator(mode="after")
    def _solvers_need_proposals(self) -> "EnvTable":
        given = [key for key in ("n", "train_proposer", "train_solver") if getattr(self, key) is not None]
        if given and self.taskset.id != _PROPOSER_SOLVER:
            raise ValueError(
                f"got {', '.join(given)} with taskset.id={self.taskset.id!r}, which has no proposed problems; only "
                "'proposer-solver' reads them. Leave them out."
            )
        return self

    @property
    def agents(self) -> dict[str, AgentTable]:
        """The tables of roles by name."""
        return self.__pydantic_extra__


def _is_agent(table: Any) -> bool:
    return isinstance(table, AgentTable) or (isinstance(table, Mapping) and set(table) <= set(AgentTable.model_fields))


def _grpo_unless_named(table: Any) -> Any:
    return {"type": "grpo", **table} if isinstance(table, Mapping) else table


Named = Annotated[
    GRPO | MaxRL | RAE | HierarchicalGRPO | OPD | OPSD | SFT | Echo, Field(discriminator="type")
]  # fmt: skip
AlgorithmTable = Annotated[Named, BeforeValidator(_grpo_unless_named)]
"""The algorithms, told apart by `type`; a missing one is grpo."""


class SourceTable(Frozen):
    """An environment with what trains on it. What it leaves out it inherits from [orchestrator.train].

    Within the same `type` single parameters change and the others stay; another `type`
    starts from that type's defaults. Tables of free names (roles, kwargs, pools, gates) are
    replaced whole.
    """

    name: str | None = Field(default=None, min_length=1)
    """Its name in metrics and ids; absent means the taskset's id."""
    env: EnvTable | None = None
    """The environment."""
    algo: AlgorithmTable = GRPO()
    """The algorithm; inherited."""
    group_size: int = Field(default=8, ge=1)
    """Rollouts of each prompt; inherited."""
    curriculum: CurriculumTable = CurriculumTable()
    """Which task comes next, and which groups train; inherited."""

    @model_validator(mode="after")
    def _hierarchy_needs_proposals(self) -> "SourceTable":
        if isinstance(self.algo, HierarchicalGRPO) and self.env and self.env.taskset.id != _PROPOSER_SOLVER:
            raise ValueError(
                f"got algo.type='hierarchical_grpo' with taskset.id={self.env.taskset.id!r}; it compares solvers of "
                "one proposed problem, so it is accepted only for 'proposer-solver'. Use 'grpo'."
            )
        return self

    @property
    def label(self) -> str:
        """The name, or the taskset's id."""
        return self.name or (self.env.taskset.id if self.env else "")
