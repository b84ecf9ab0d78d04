"""ECHO: GRPO on what the policy wrote, cross-entropy on what the environment answered."""

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from prl.algorithms.parts import GroupCredit, UserFunction
from prl.config.base import Frozen
from prl.errors import DataError
from prl.trajectories import observation_weights
from prl.types import Group, Trace


class EchoRole(Frozen):
    """How the tokens of one role train."""

    alpha: float = Field(ge=0)
    """Their weight in the ce component, ECHO's lambda."""


class EchoRoles(Frozen):
    """The roles that train; a role left out does not. The assistant's tokens are the policy's own."""

    system: EchoRole | None = None
    """Bodies of system messages after the first sampled token."""
    user: EchoRole | None = None
    """Bodies of user messages after the first sampled token."""
    tool: EchoRole | None = None
    """Bodies of tool responses."""

    @model_validator(mode="after")
    def _at_least_one(self) -> "EchoRoles":
        if not self.alphas:
            raise ValueError("Echo: got roles without any role, so no observation would train; use 'grpo' for that.")
        return self

    @property
    def alphas(self) -> dict[str, float]:
        """{role: alpha} of the roles that are set."""
        given = {"system": self.system, "user": self.user, "tool": self.tool}
        return {name: role.alpha for name, role in given.items() if role is not None}


class Echo(GroupCredit):
    """Group-relative credit on actions, plus weighted cross-entropy on observations, chosen by message role.

    Setting any role replaces the whole table. `filter` names a function (trace, **kwargs) -> one
    keep-mask of booleans per sample of `trace.samples`, as long as its token_ids; False takes
    a token out of ce and nothing brings one in.

    Source: ECHO, arXiv:2605.24517; algorithms page, "The Algorithms" and "Customizing Components".
    """

    component: ClassVar[str] = "rl"
    type: Literal["echo"] = "echo"
    roles: EchoRoles = EchoRoles(tool=EchoRole(alpha=0.1))
    """What trains by cross-entropy, and how much."""
    filter: UserFunction | None = None
    """A function that narrows the tokens chosen by role."""

    def score_group(self, group: Group, state: Any) -> tuple[Group, Any]:
        """Advantages on trained tokens and ce weights on observations.

        Raises:
          ConfigError: the filter cannot be found.
          DataError: it returns something else than a mask per sample, or a sample does not know its roles.
        """
        if not group.traces:
            return group, state
        observed = [weights for trace in group.traces for weights in self._observed(trace)]
        return group.assign(**self.credit(group), ce_weights=observed), state

    def _observed(self, trace: Trace) -> list[np.ndarray]:
        masks = [None] * len(trace.samples) if self.filter is None else _masks(self.filter, trace)
        pairs = zip(trace.samples, masks, strict=True)
        return [observation_weights(sample, self.roles.alphas, keep=mask) for sample, mask in pairs]


def _masks(filter: UserFunction, trace: Trace) -> list[Any]:
    masks = filter.resolve("Echo.filter")(trace, **filter.kwargs)
    if not isinstance(masks, list | tuple) or len(masks) != len(trace.samples):
        got = f"{len(masks)} masks" if isinstance(masks, list | tuple) else f"a {type(masks).__name__}"
        raise DataError(
            f"Echo.filter {filter.import_path!r}, trace {trace.id!r}: returned {got}; need a list with one mask for "
            f"each of its {len(trace.samples)} samples."
        )
    return list(masks)
