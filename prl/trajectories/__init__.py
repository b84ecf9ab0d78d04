"""From model calls to training rows."""

from prl.trajectories.interleave import interleave
from prl.trajectories.packing import pack
from prl.trajectories.zero_signal import drop_zero_signal

__all__ = ["drop_zero_signal", "interleave", "pack"]
