"""RAE: reward minus a moving average of the same agent's rewards."""

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from prl.errors import DataError


class RAEState(NamedTuple):
    """Moving average of reward for each key; one not seen yet stands at 0. Never changed in place."""

    baselines: dict[Any, float] = {}


def rae(
    rewards: Float[Tensor, " traces"],
    agents: Sequence[Hashable],
    state: RAEState = RAEState(),
    *,
    decay: float = 0.95,
) -> tuple[Float[Tensor, " traces"], RAEState]:
    """A_i = r_i - b before r_i moves it; then b <- decay * b + (1 - decay) * r_i, b of the trace's own agent.

    Traces are taken in order, so a later one sees the rewards of those before it but
    never its own: the baseline stays independent of what it is subtracted from.

    Args:
      rewards: final reward of each trace, any sign.
      agents: key of each trace: its agent, or (env, agent) where environments share a state.
      state: left as it is; keep the returned one.
      decay: share of the old average that stays, in [0, 1); warm-up takes about 1 / (1 - decay) traces.

    Returns:
      Advantages in trace order, in units of reward, and the state after the last trace.
      The first trace of a key gets its reward. No trace: no advantage, the same averages.

    Raises:
      DataError: lengths differ, decay outside [0, 1), or a reward that is not finite,
        which would stay in the average for good.

    Source: SPIRAL, arXiv:2506.24119; algorithms page, "Self-Play Advantage (RAE)".
    """
    if len(agents) != len(rewards):
        raise DataError(f"rae: {len(rewards)} rewards and {len(agents)} agents; need one agent per trace.")
    if not 0 <= decay < 1:
        raise DataError(f"rae: got decay={decay}; need 0 <= decay < 1, so that an average moves. The default is 0.95.")
    baselines, before = dict(state.baselines), []
    for i, (agent, reward) in enumerate(zip(agents, rewards.tolist(), strict=True)):
        if not math.isfinite(reward):
            raise DataError(f"rae: reward {i}, of agent {agent!r}, is {reward}; leave out traces that are not valid.")
        baseline = baselines.get(agent, 0.0)
        before.append(baseline)
        baselines[agent] = baseline + (1.0 - decay) * (reward - baseline)
    return rewards - rewards.new_tensor(before), RAEState(baselines)
