"""Groups of independent 0/1 rewards: exact expectations, and the weight that an advantage puts on grad p."""

from collections.abc import Callable

import torch
from torch import Tensor

from prl.errors import DataError


def expect(p: float, n: int, statistic: Callable[[Tensor], Tensor]) -> float:
    """E[statistic(rewards [n])] over n independent rewards that are 1 with probability p, in float64.

    The statistic runs under vmap and must not depend on the order of the rollouts: one
    order stands for all groups with as many successes.

    Raises:
      DataError: p is not inside (0, 1), or n < 1.
    """
    if not 0 < p < 1 or n < 1:
        raise DataError(f"oracle: got p={p}, n={n}; need 0 < p < 1 and at least 1 rollout.")
    successes = torch.arange(n + 1, dtype=torch.float64)
    rewards = (torch.arange(n) < successes[:, None]).double()
    trials, rate = torch.tensor([n, p], dtype=torch.float64)
    chance = torch.distributions.Binomial(trials, rate).log_prob(successes).exp()
    values = torch.func.vmap(statistic)(rewards).double()
    if values.shape != successes.shape:
        raise DataError(f"oracle: the statistic returned shape {list(values.shape[1:])}; need one number per group.")
    return float(chance @ values)


def weight(p: float, n: int, advantage: Callable[[Tensor], Tensor]) -> float:
    """w(p) in E[(1/n) sum_i A_i grad log pi(y_i)] = w(p) grad p, for groups of n 0/1 rewards.

    A success has grad log pi = grad p / p on average, a failure -grad p / (1 - p). Known
    values: (n - 1)/n for r - mean; the sum of (1 - p)^k over k < n - 1 for (r - mean)/mean
    with zeros on groups that fail; 1/p is maximum likelihood.

    Args:
      p: success rate of one rollout, inside (0, 1).
      advantage: fn(rewards [n]) -> [n], the same for every order of the rollouts; runs under vmap.

    Source: MaxRL, arXiv:2602.02710.
    """

    def update(rewards: Tensor) -> Tensor:
        return (advantage(rewards) * (rewards / p - (1 - rewards) / (1 - p))).mean()

    return expect(p, n, update)
