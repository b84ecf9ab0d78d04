"""Samplers that choose tasks by what they earned before."""

import copy
import math
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from random import Random
from typing import Any, NamedTuple

from prl.errors import ConfigError
from prl.types import Group, Task


class Pool(NamedTuple):
    """Tasks whose latest mean reward is at most `threshold`; `weight` is the relative chance of each to be drawn."""

    threshold: float | int
    weight: float | int


class DifficultyPoolSampler:
    """Draws tasks with replacement, each by the weight of the pool that its latest mean group reward falls into.

    The pool is the first in order of threshold with reward <= threshold; the last one
    takes what is above all. A weight belongs to a task, not to its pool: a pool of twice
    as many tasks is drawn twice as often. An unseen task has weight 1.0; weight 0 is
    never drawn. Only the latest group counts, without smoothing, and a group without a
    valid trace changes nothing.

    Args:
      pools: {name: Pool(threshold, weight)}, or plain pairs. Thresholds are in units of
        reward, which may be negative.

    Raises:
      ConfigError: no pool, two pools of one threshold, a negative or not finite weight,
        a threshold that is not finite.

    Source: algorithms page, "Curricula".
    """

    def __init__(self, pools: Mapping[str, Pool | tuple[float | int, float | int]]) -> None:
        self.pools = _checked({name: Pool(*pool) for name, pool in pools.items()})
        self._names = list(self.pools)
        self._above = [pool.threshold for pool in self.pools.values()][:-1]  # the last pool takes what is above all
        self._rewards: dict[str, float] = {}
        self._table: tuple[Any, list[float]] | None = None

    def __repr__(self) -> str:
        pools = ", ".join(f"{name} <= {pool.threshold:g} x{pool.weight:g}" for name, pool in self.pools.items())
        return f"DifficultyPoolSampler({pools})"

    def __deepcopy__(self, memo: Any) -> "DifficultyPoolSampler":
        # Only the rewards ever change in place; the tasks in the table are by far the larger part.
        fresh = copy.copy(self)
        fresh._rewards = dict(self._rewards)
        return fresh

    def sample(self, tasks: Iterable[Task], draw: int, rng: Random) -> Task:
        """A task of the finite taskset; one call of `rng` decides.

        Raises:
          ConfigError: the taskset is infinite or empty, or every task has weight 0.
        """
        # Cumulative weights are kept until an observation changes them: a draw takes O(log tasks).
        if self._table is None or self._table[0] is not tasks:
            self._table = (tasks, list(accumulate(self._weights(tasks))))
        ends = self._table[1]
        # The first end above the point; a task of weight 0 ends where it starts, so it is never that one.
        return tasks[bisect_right(ends, rng.random() * ends[-1])]  # pyright: ignore[reportIndexIssue]

    def observe(self, group: Group) -> None:
        """Remember the mean reward of the group's valid trainable traces."""
        if group.traces:
            # The exact mean: n times the threshold over n may else come out above it.
            self._rewards[group.task.key] = statistics.mean(trace.reward for trace in group.traces)
            self._table = None

    def pool_of(self, key: str) -> str | None:
        """Name of the task's pool; None where it was not seen yet."""
        reward = self._rewards.get(key)
        return None if reward is None else self._names[bisect_left(self._above, reward)]

    def state_dict(self) -> dict[str, Any]:
        """{"rewards": {task key: latest mean reward}}."""
        return {"rewards": dict(self._rewards)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; the pools are those of this sampler."""
        self._rewards, self._table = dict(state["rewards"]), None

    def metrics(self) -> dict[str, float]:
        """`seen`: tasks observed so far; `pool/<name>`: the share of them in each pool, once there are any."""
        counts = Counter(map(self.pool_of, self._rewards))
        shares = {f"pool/{name}": counts[name] / len(self._rewards) for name in self.pools if self._rewards}
        return {"seen": float(len(self._rewards)), **shares}

    def _weights(self, tasks: Iterable[Task]) -> list[float]:
        if not hasattr(tasks, "__len__"):
            raise ConfigError(
                f"DifficultyPoolSampler: the taskset is a {type(tasks).__name__} without a length; need a finite "
                "sequence, in which every task has a weight."
            )
        weight_of = {name: float(pool.weight) for name, pool in self.pools.items()} | {None: 1.0}
        weights = [weight_of[self.pool_of(task.key)] for task in tasks]
        if not any(weights):
            counts = Counter(self.pool_of(task.key) for task in tasks)
            there = ", ".join(f"{name!r} ({counts[name]} tasks)" for name in self.pools if counts[name])
            raise ConfigError(
                f"DifficultyPoolSampler: no task can be drawn: all {len(weights)} are in pools of weight 0: "
                f"{there or 'no task at all'}. Give one of them a weight above 0."
            )
        return weights


def _checked(pools: Mapping[str, Pool]) -> dict[str, Pool]:
    """The pools in order of threshold."""
    if not pools:
        raise ConfigError("DifficultyPoolSampler: got no pools; need at least one {name: Pool(threshold, weight)}.")
    for name, (threshold, weight) in pools.items():
        if not math.isfinite(threshold) or not math.isfinite(weight) or weight < 0:
            raise ConfigError(
                f"DifficultyPoolSampler: pool {name!r} has threshold={threshold}, weight={weight}; need a finite "
                "threshold and a finite weight >= 0 (0 turns the pool off)."
            )
    ordered = dict(sorted(pools.items(), key=lambda item: item[1].threshold))
    names = list(ordered)
    for one, two in zip(names, names[1:], strict=False):
        if ordered[one].threshold == ordered[two].threshold:
            raise ConfigError(
                f"DifficultyPoolSampler: pools {one!r} and {two!r} have the same threshold "
                f"{ordered[one].threshold}; no task could fall into the second."
            )
    return ordered
