"""Gates that look at a scored group's credit."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from prl.errors import ConfigError
from prl.types import Group


class AdvRangeGate:
    """Refuses a group in which the advantage of every trainable token lies in [reject_min, reject_max].

    Both ends are refused, in the float32 of the streams. A single token outside admits the
    group; so does the absence of advantages.

    Raises:
      ConfigError: a bound is NaN, or reject_min > reject_max, which refuses nothing.

    Source: algorithms page, "Curricula".
    """

    def __init__(self, reject_min: float | int, reject_max: float | int) -> None:
        if not reject_min <= reject_max:
            raise ConfigError(
                f"AdvRangeGate: got reject_min={reject_min}, reject_max={reject_max}; need reject_min <= reject_max."
            )
        self.reject_min, self.reject_max = reject_min, reject_max
        self._asked = self._rejected = 0

    def __repr__(self) -> str:
        return f"AdvRangeGate({self.reject_min:g}, {self.reject_max:g})"

    def admit(self, group: Group) -> bool:
        """False where some token has an advantage and all of them lie in the range."""
        streams = [s.advantages[s.loss_mask] for s in group.samples if s.advantages is not None]
        credit = np.concatenate(streams) if streams else np.zeros(0, np.float32)
        low, high = np.float32(self.reject_min), np.float32(self.reject_max)
        rejected = credit.size > 0 and bool(((low <= credit) & (credit <= high)).all())
        self._asked, self._rejected = self._asked + 1, self._rejected + rejected
        return not rejected

    def state_dict(self) -> dict[str, int]:
        """Groups asked about and refused since the start."""
        return {"asked": self._asked, "rejected": self._rejected}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the counts."""
        self._asked, self._rejected = state["asked"], state["rejected"]

    def metrics(self) -> dict[str, float]:
        """`rejected`: the share of groups refused since the start, once one was asked about."""
        return {"rejected": self._rejected / self._asked} if self._asked else {}
