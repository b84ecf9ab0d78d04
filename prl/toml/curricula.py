"""Keys of a curriculum: one sampler and named gates."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from prl.config.base import Frozen
from prl.curricula import AdvRangeGate, Curriculum, DifficultyPoolSampler, Pool, StandardSampler


class StandardTable(Frozen):
    """Tasks in source order, from the start again at the end."""

    type: Literal["standard"] = "standard"

    def build(self) -> StandardSampler:
        """The sampler."""
        return StandardSampler()


class PoolTable(Frozen):
    """Tasks whose latest mean reward is at most `threshold`."""

    threshold: float
    """Highest reward of the pool, inclusive; the pool of the highest one takes what is above too."""
    weight: float
    """Relative chance of each of its tasks to be drawn; 0 turns the pool off. An unseen task has 1.0."""


class DifficultyPoolTable(Frozen):
    """Draws tasks with replacement, by the pool that their latest mean group reward falls into."""

    type: Literal["difficulty_pool"] = "difficulty_pool"
    pools: dict[str, PoolTable]
    """The pools by name."""

    @model_validator(mode="after")
    def _pools_fit(self) -> "DifficultyPoolTable":
        self.build()
        return self

    def build(self) -> DifficultyPoolSampler:
        """The sampler."""
        return DifficultyPoolSampler({name: Pool(p.threshold, p.weight) for name, p in self.pools.items()})


class AdvantageRangeTable(Frozen):
    """Refuses a group in which every trainable token's advantage lies in the range."""

    type: Literal["advantage_range"]
    reject_min: float
    """Lower end, refused itself."""
    reject_max: float
    """Upper end, refused itself."""

    @model_validator(mode="after")
    def _bounds_fit(self) -> "AdvantageRangeTable":
        self.build()
        return self

    def build(self) -> AdvRangeGate:
        """The gate."""
        return AdvRangeGate(self.reject_min, self.reject_max)


SamplerTable = Annotated[StandardTable | DifficultyPoolTable, Field(discriminator="type")]


class CurriculumTable(Frozen):
    """Which task comes next, and which groups train."""

    sampler: SamplerTable = StandardTable()
    """What chooses tasks."""
    gates: dict[str, AdvantageRangeTable] = {}
    """Gates by name; a group trains only if every one admits it."""

    def build(self) -> Curriculum:
        """The curriculum, in its first state."""
        return Curriculum(self.sampler.build(), {name: gate.build() for name, gate in self.gates.items()})
