"""What several algorithms share: sampling and its rule, the grpo family's credit, a user's function by name."""

import importlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator, Field, field_validator, model_validator
from torch import Tensor

from prl.advantages import group_norm, linear_length_penalty, prompt_mean_weights
from prl.config import AlgoSampling
from prl.config.base import Frozen
from prl.errors import ConfigError
from prl.trajectories.counts import subagent_steps, token_counts
from prl.types import Group, Trace


class AlgorithmConfig(Frozen):
    """What every algorithm of prl has: a loss component for its action tokens, and a source of rollouts."""

    component: ClassVar[str] = "rl"
    sampling: AlgoSampling = AlgoSampling()
    """How training rollouts are produced."""

    @model_validator(mode="after")
    def _frozen_sampling_feeds_ce_only(self) -> "AlgorithmConfig":
        if self.sampling.source != "policy" and self.component != "ce":
            raise ValueError(
                f"{type(self).__name__}: got the frozen model {self.sampling.source.name!r} as sampling.source; this "
                f"algorithm feeds {self.component}, which needs the live policy's own sampling log-probabilities for "
                "importance ratios. Frozen sampling can feed only ce: leave source out, or use 'sft'."
            )
        return self

    def init_state(self) -> Any:
        """No memory."""
        return {}


class LinearPenalty(Frozen):
    """The linear length penalty. The function is `prl.advantages.linear_length_penalty`."""

    type: Literal["linear"] = "linear"
    num_output_tokens_weight: float = Field(default=0.25, ge=0)
    """Weight of the tokens that the model wrote."""
    num_input_tokens_weight: float = Field(default=0.1, ge=0)
    """Weight of the tokens that were put in front of it."""
    num_turns_weight: float = Field(default=0.1, ge=0)
    """Weight of its turns."""


class LinearSubagentPenalty(Frozen):
    """The linear length penalty with tokens of sub-agents weighed apart.

    It leaves the turns, the training tokens and the length-weighted baseline alone.
    """

    type: Literal["linear-subagent"] = "linear-subagent"
    num_output_tokens_weight: float = Field(default=0.25, ge=0)
    """Weight of the tokens that the model wrote."""
    num_input_tokens_weight: float = Field(default=0.1, ge=0)
    """Weight of the tokens that were put in front of it."""
    num_turns_weight: float = Field(default=0.1, ge=0)
    """Weight of its turns, those of sub-agents included."""
    subagent_token_weight: float = Field(default=0.0, ge=0)
    """Weight of a token of a sub-agent's call: 0 leaves it out, 1 counts it fully."""


def _linear_unless_named(penalty: Any) -> Any:
    return {"type": "linear", **penalty} if isinstance(penalty, Mapping) else penalty


LengthPenalty = Annotated[
    Annotated[LinearPenalty | LinearSubagentPenalty, Field(discriminator="type")], BeforeValidator(_linear_unless_named)
]
"""The length penalties, told apart by `type`; an empty table is the linear one."""


class GroupCredit(AlgorithmConfig):
    """What grpo and echo share: reward minus the group's baseline, with its options."""

    length_penalty: LengthPenalty | None = None
    """Subtracted from each reward before the baseline is taken."""
    length_weighted_baseline: bool = False
    """Weigh the baseline by trained tokens, so that credit is zero-mean over the group's tokens."""
    loss_aggregation: Literal["token", "prompt"] = "token"
    """What weighs the same in the rl loss: each token of the batch, or each group."""

    def credit(self, group: Group) -> dict[str, Tensor]:
        """`advantages` [traces], and `rl_weights` [traces] of 1/T_q with prompt aggregation."""
        lengths = group.lengths
        rewards = shaped_rewards(group, self.length_penalty)
        streams = {"advantages": group_norm(rewards, lengths if self.length_weighted_baseline else None)}
        if self.loss_aggregation == "prompt":
            streams["rl_weights"] = prompt_mean_weights(lengths)
        return streams


def shaped_rewards(group: Group, penalty: LinearPenalty | LinearSubagentPenalty | None) -> Tensor:
    """Rewards [traces] less the length penalty, in units of reward."""
    if penalty is None:
        return group.rewards
    weight = penalty.subagent_token_weight if isinstance(penalty, LinearSubagentPenalty) else 1.0
    counts = [_counts(trace, weight) for trace in group.traces]
    output, fresh, turns = torch.tensor(counts, dtype=torch.float32).T
    return linear_length_penalty(
        group.rewards, output, fresh, turns,
        num_output_tokens_weight=penalty.num_output_tokens_weight,
        num_input_tokens_weight=penalty.num_input_tokens_weight,
        num_turns_weight=penalty.num_turns_weight,
    )  # fmt: skip


def _counts(trace: Trace, weight: float) -> tuple[float, float, int]:
    return token_counts(trace.steps, subagents=subagent_steps(trace.edges), subagent_token_weight=weight)


def same_aggregation(algorithms: Mapping[str, Any]) -> None:
    """Raise ConfigError where environments {name: algorithm} with an rl loss differ in `loss_aggregation`.

    Source: algorithms page, "Prompt-mean loss aggregation".
    """
    rl = {name: a for name, a in algorithms.items() if a.component == "rl"}
    chosen = {name: getattr(a, "loss_aggregation", "token") for name, a in rl.items()}
    if len(set(chosen.values())) > 1:
        listed = ", ".join(f"{name!r} has {aggregation!r}" for name, aggregation in chosen.items())
        raise ConfigError(
            f"loss_aggregation: {listed}; environments with an rl loss share one sum of weights, so they need the "
            "same. Algorithms without the key use 'token'."
        )


class UserFunction(Frozen):
    """A function of the user's own module, found when it is first needed."""

    import_path: str
    """Module and name: "my_module.my_function"."""
    kwargs: dict[str, Any] = {}
    """Keyword arguments of every call."""

    @field_validator("import_path")
    @classmethod
    def _names_module_and_function(cls, path: str) -> str:
        if "." not in path or not all(part.isidentifier() for part in path.split(".")):
            raise ValueError(f"import_path: got {path!r}; need module and function, such as 'my_module.my_function'.")
        return path

    def resolve(self, where: str) -> Callable[..., Any]:
        """The function itself, without `kwargs`.

        Raises:
          ConfigError: the module cannot be imported, lacks the name, or holds something that cannot be called.
        """
        module, _, name = self.import_path.rpartition(".")
        path = f"{where}: import_path={self.import_path!r}"
        try:
            found = getattr(importlib.import_module(module), name, None)
        except ImportError as error:
            raise ConfigError(f"{path}: {error}. Put the folder of the module on PYTHONPATH.") from error
        if not callable(found):
            raise ConfigError(f"{path}: module {module!r} has no function {name!r}.")
        return found
