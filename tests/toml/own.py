"""What a user's module might hold: a loss, a filter, a renderer."""

from prl.renderers import ChatML
from prl.types import LossInputs, LossOutputs


class Mine(ChatML):
    """A renderer of one's own."""


def ppo_clip_loss(inputs: LossInputs, clip_eps: float = 0.2) -> LossOutputs:
    return LossOutputs(loss=(inputs.advantages * inputs.trainer_logprobs).sum() * clip_eps, metrics={})


def drop_warnings(trace, *, patterns):
    return [[True] * len(sample) for sample in trace.samples]
