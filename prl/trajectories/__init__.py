"""From model calls to training rows."""

from prl.trajectories.counts import subagent_steps, token_counts
from prl.trajectories.interleave import interleave
from prl.trajectories.observations import observation_weights
from prl.trajectories.packing import pack
from prl.trajectories.zero_signal import drop_zero_signal

__all__ = ["drop_zero_signal", "interleave", "observation_weights", "pack", "subagent_steps", "token_counts"]
