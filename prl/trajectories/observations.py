"""ECHO's targets: what the environment said between the model's turns."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from prl.errors import DataError
from prl.types import ROLES, TrainingSample

_ASSISTANT = ROLES.index("assistant")
_SPEAKERS = tuple(role for role in ROLES if role not in ("none", "assistant"))


def observation_weights(
    sample: TrainingSample, alphas: Mapping[str, float | int], *, keep: Any | None = None
) -> np.ndarray:
    """ce weights of the tokens that the environment provided: alphas[role], 0.0 on all others.

    A token has a weight where it comes after the first token of `loss_mask`, is not
    sampled, belongs to a message of a role in `alphas`, and to its body where the sample
    knows bodies (`content`). What stands before the first sampled token is the task, or
    a history rewritten after a break, and gets none. Completions that may not train
    have the role assistant and get none either.

    Args:
      alphas: weight of each role: "system", "user", "tool"; ECHO's is {"tool": 0.1}.
      keep: boolean [tokens], False takes a token out. It only narrows.

    Returns:
      float32 [tokens], for `ce_weights`.

    Raises:
      DataError: the sample does not know its roles, an unknown role, an alpha that is
        negative or not finite, or `keep` of another length or type.

    Source: ECHO; algorithms page, "The Algorithms" (`echo`) and "Customizing Components".
    """
    where = f"observation_weights, sample {sample.id!r}"
    _check_alphas(where, alphas)
    roles = _roles(where, sample)
    wanted = np.array([alphas.get(role, 0.0) for role in ROLES], np.float32)
    after_first = np.logical_or.accumulate(sample.loss_mask) & ~sample.loss_mask
    if sample.content is not None:
        after_first = after_first & sample.content
    if keep is not None:
        after_first = after_first & _kept(where, sample, keep)
    return np.where(after_first, wanted[roles], np.float32(0))


def _check_alphas(where: str, alphas: Mapping[str, float | int]) -> None:
    if unknown := [role for role in alphas if role not in _SPEAKERS]:
        raise DataError(
            f"{where}: alphas names {', '.join(map(repr, unknown))}; the environment speaks as "
            f"{', '.join(_SPEAKERS)}. Tokens of the assistant are the model's own."
        )
    if wrong := {role: alpha for role, alpha in alphas.items() if not 0 <= alpha < math.inf}:
        raise DataError(f"{where}: got alphas {wrong}; need numbers >= 0, the weights of a loss.")


def _roles(where: str, sample: TrainingSample) -> np.ndarray:
    roles = sample.roles
    if roles is None or not np.isin(roles, (0, _ASSISTANT), invert=True).any():
        raise DataError(
            f"{where}: no token has the role of a message of the environment. Roles come from the renderer; choose "
            "one that attributes tokens, or give prompt_roles with each Step."
        )
    return roles


def _kept(where: str, sample: TrainingSample, keep: Any) -> np.ndarray:
    keep = np.asarray(keep)
    if keep.dtype != np.bool_ or keep.shape != (len(sample),):
        raise DataError(
            f"{where}: keep is {keep.dtype} of shape {list(keep.shape)}; need {len(sample)} booleans, one per token."
        )
    return keep
