"""Settings of a run: optimiser and sampling."""

from pydantic import Field, model_validator

from prl.config.base import Frozen
from prl.errors import ConfigError


class AdamW(Frozen):
    """The optimiser, torch's AdamW."""

    lr: float = Field(default=1e-5, ge=0)
    """Learning rate, constant."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the first and second moment."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay."""


class Sampling(Frozen):
    """How completions are drawn. Training needs what the trainer can reproduce: temperature > 0, nothing truncated."""

    temperature: float = Field(default=1.0, ge=0)
    """Softmax temperature; 0 is greedy, for evaluation only."""
    max_tokens: int = Field(default=64, ge=1)
    """Most tokens of one completion."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus mass; below 1 for evaluation only."""
    top_k: int | None = Field(default=None, ge=1)
    """Keep the k likeliest tokens; for evaluation only."""
    topk_logprobs: int | None = Field(default=None, ge=1)
    """Record the k likeliest tokens at each position, for score centering."""
    stop: tuple[int | str, ...] = ()
    """Tokens that end a completion besides the renderer's own: ids, or strings that are one token."""

    @model_validator(mode="after")
    def _greedy_has_no_candidates(self) -> "Sampling":
        if self.temperature == 0 and (self.top_p < 1 or self.top_k):
            raise ValueError(
                f"Sampling: got temperature=0 with top_p={self.top_p}, top_k={self.top_k}, which greedy ignores. "
                "Leave them out, or set a temperature above 0."
            )
        if self.temperature == 0 and self.topk_logprobs:
            raise ValueError(
                f"Sampling: got temperature=0 with topk_logprobs={self.topk_logprobs}; a greedy distribution is a "
                "point and has no candidates. Leave topk_logprobs out, or set a temperature above 0."
            )
        return self

    def for_training(self, where: str) -> "Sampling":
        """The same settings.

        Raises:
          ConfigError: the trainer could not reproduce the sampled distribution.
        """
        if self.temperature == 0 or self.top_p < 1 or self.top_k:
            raise ConfigError(
                f"{where}: got temperature={self.temperature}, top_p={self.top_p}, top_k={self.top_k}; training needs "
                "temperature > 0, top_p=1 and no top_k, so that pi/mu compares the same distribution. "
                "Truncated and greedy sampling belong in evaluate(sampling=...)."
            )
        return self

    def with_candidates(self, topk: int | None) -> "Sampling":
        """The same settings, recording the topk likeliest tokens where `topk` is a number.

        Raises:
          ConfigError: another number is set already.
        """
        if topk is None or self.topk_logprobs == topk:
            return self
        if self.topk_logprobs is not None:
            raise ConfigError(
                f"Runner: got Sampling(topk_logprobs={self.topk_logprobs}) and IcePop(score_centering_topk={topk}). "
                "Leave topk_logprobs out; the loss asks for what it needs."
            )
        return self.model_copy(update={"topk_logprobs": topk})

    def with_stop(self, ids: tuple[int, ...]) -> "Sampling":
        """The same settings, ending at exactly these token ids."""
        return self.model_copy(update={"stop": ids}) if ids != self.stop else self
