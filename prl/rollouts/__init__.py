"""Episodes against engines: agents, branches, lockstep rounds, and the records they leave."""

from prl.rollouts.agents import Agent, Agents, Reply, Setting
from prl.rollouts.episodes import Play, Played, play_all
from prl.rollouts.lockstep import Lockstep

__all__ = ["Agent", "Agents", "Lockstep", "Play", "Played", "Reply", "Setting", "play_all"]
