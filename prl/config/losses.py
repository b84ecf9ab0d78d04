"""Settings of the rl loss."""

from typing import Literal

from pydantic import Field

from prl.config.base import Frozen


class IPO(Frozen):
    """IPO, the default: keep a token when |pi - mu| <= eps. The function is `prl.losses.ipo`."""

    type: Literal["ipo"] = "ipo"
    eps: float = Field(default=0.3, gt=0)
    """Largest absolute probability move that is kept."""
    adv_tau: float = 1.0
    """Multiplier on the advantage."""


RlLoss = IPO
