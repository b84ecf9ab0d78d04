"""Settings of the rl loss."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from prl.config.base import Frozen


class IPO(Frozen):
    """IPO, the default: keep a token when |pi - mu| <= eps. The function is `prl.losses.ipo`."""

    type: Literal["ipo"] = "ipo"
    eps: float = Field(default=0.3, gt=0)
    """Largest absolute probability move that is kept."""
    adv_tau: float = Field(default=1.0, gt=0)
    """Multiplier on the advantage."""


class IcePop(Frozen):
    """IcePop: keep a token when ratio_low <= pi/mu <= ratio_high. The function is `prl.losses.icepop`."""

    type: Literal["icepop"] = "icepop"
    ratio_low: float = 0.2
    """Lowest pi/mu that is kept."""
    ratio_high: float = 5.0
    """Highest pi/mu that is kept."""
    adv_tau: float = Field(default=1.0, gt=0)
    """Multiplier on the advantage."""
    score_centering: bool = False
    """Take out the part of the update that carries no reward signal: `prl.losses.icepop_centered`."""
    score_centering_topk: int = Field(default=128, ge=1)
    """Likeliest tokens whose log-probabilities the engine records for it, at each sampled token."""

    @property
    def candidates(self) -> int | None:
        """Candidates that rollouts must record for this loss; None for none."""
        return self.score_centering_topk if self.score_centering else None

    @model_validator(mode="after")
    def _topk_needs_centering(self) -> "IcePop":
        if not self.score_centering and self.score_centering_topk != 128:
            raise ValueError(
                f"IcePop: got score_centering_topk={self.score_centering_topk} without score_centering=True; nothing "
                "would read it. Set score_centering=True or leave it out."
            )
        return self

    @model_validator(mode="after")
    def _band_keeps_ratio_one(self) -> "IcePop":
        if not 0 < self.ratio_low <= 1:
            raise ValueError(
                f"IcePop: got ratio_low={self.ratio_low}; need 0 < ratio_low <= 1, so that an on-policy token is kept. "
                "The default is 0.2."
            )
        if not self.ratio_high >= 1:
            raise ValueError(
                f"IcePop: got ratio_high={self.ratio_high}; need ratio_high >= 1, so that an on-policy token is kept. "
                "The default is 5.0."
            )
        return self


RlLoss = Annotated[IPO | IcePop, Field(discriminator="type")]
"""The configured rl losses, told apart by `type`."""
