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
