"""Environments with what trains on them, every setting resolved and checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from prl.algorithms import Algorithm, as_algorithm, same_aggregation, source_of
from prl.config import FrozenModel
from prl.config.base import at_least
from prl.curricula import Curriculum
from prl.envs.base import Env
from prl.errors import ConfigError
from prl.types import Task


@dataclass(frozen=True)
class Source:
    """An environment with what trains on it; None inherits the Runner's setting.

    `models` pins roles to frozen models: those speak for them, and nothing is learned from what they say.
    """

    env: Env
    algorithm: Any = None
    curriculum: Curriculum | None = None
    group_size: int | None = None
    models: Mapping[str, FrozenModel] = field(default_factory=dict)


class Stream(NamedTuple):
    """A source with every setting resolved and its training tasks at hand."""

    env: Env
    algorithm: Algorithm
    curriculum: Curriculum
    group_size: int
    tasks: Sequence[Task]
    pinned: Mapping[str, FrozenModel] = MappingProxyType({})

    @property
    def frozen(self) -> dict[str, FrozenModel]:
        """Who speaks for which role in training, where it is not the policy."""
        source = source_of(self.algorithm)
        everyone = {} if source == "policy" else dict.fromkeys(self.env.agents, source)
        return {**everyone, **self.pinned}

    @property
    def learners(self) -> int:
        """Roles that the policy may learn from."""
        return len(self.env.agents) - len(self.pinned)


def resolve(
    env: Env | Sequence[Env | Source], algorithm: Algorithm, curriculum: Curriculum, group_size: int
) -> list[Stream]:
    """Sources with the Runner's settings filled in.

    Raises:
      ConfigError: no source, two environments of one name, or an environment without training tasks.
    """
    sources = [s if isinstance(s, Source) else Source(s) for s in (env if isinstance(env, Sequence) else [env])]
    names = [source.env.name for source in sources]
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"Runner: environments are {names}; need at least one, and names that differ.")
    streams = []
    for source in sources:
        if source.group_size is not None:
            at_least(f"Source {source.env.name!r}", 1, group_size=source.group_size)
        tasks = source.env.tasks("train")
        if not len(tasks):
            raise ConfigError(f"Runner: environment {source.env.name!r} has no training tasks.")
        streams.append(
            Stream(
                source.env,
                algorithm if source.algorithm is None else as_algorithm(source.algorithm),
                source.curriculum or curriculum,
                group_size if source.group_size is None else source.group_size,
                tasks,
                source.models,
            )  # fmt: skip
        )
    for stream in streams:
        _check_stream(stream)
    same_aggregation({stream.env.name: stream.algorithm for stream in streams})
    return streams


def _check_stream(stream: Stream) -> None:
    where, roles = f"Source {stream.env.name!r}", stream.env.agents
    if odd := [role for role in stream.pinned if role not in roles]:
        raise ConfigError(f"{where}: models names the role {odd[0]!r}; this environment declares {', '.join(roles)}.")
    if not stream.learners:
        raise ConfigError(f"{where}: every role is pinned to a frozen model, so there is nothing to train.")
    if source_of(stream.algorithm) != "policy" and stream.algorithm.component != "ce":
        raise ConfigError(
            f"{where}: rollouts of a frozen model can feed only the ce component, not "
            f"{stream.algorithm.component!r}: rl and ref_kl need the policy's own sampling log-probabilities."
        )
    alone: Any = getattr(stream.algorithm, "episode_agents", ())
    if alone and (len(roles) < 2 or not set(alone) <= set(roles)):
        raise ConfigError(
            f"{where}: episode_agents is {list(alone)}, the environment declares {', '.join(roles)}; hierarchical_grpo "
            "is for proposer-solver environments, whose roles it names."
        )
