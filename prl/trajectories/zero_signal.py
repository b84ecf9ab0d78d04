"""Leave out what cannot move the policy: rl tokens of zero advantage, samples without any member token."""

from collections.abc import Iterable

import numpy as np

from prl.types import TrainingSample


def drop_zero_signal(samples: Iterable[TrainingSample]) -> list[TrainingSample]:
    """Samples that still train something, with zero-advantage tokens out of the rl component.

    A token whose advantage is 0 leaves rl and its N; ce and ref_kl stay. A sample with
    no member of any component is dropped.

    Source: algorithms page, "Reference Scoring" (filtering) and "Loss Components".
    """
    return [
        s for s in map(_without_zero_advantages, samples) if any(s.members(c).any() for c in ("rl", "ce", "ref_kl"))
    ]


def _without_zero_advantages(sample: TrainingSample) -> TrainingSample:
    rl = sample.weights("rl")
    if sample.advantages is None or not (silent := (rl != 0) & (sample.advantages == 0)).any():
        return sample
    return sample.with_streams(rl_weights=np.where(silent, np.float32(0), rl))
