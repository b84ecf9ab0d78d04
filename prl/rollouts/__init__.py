"""Episodes against engines: agents, branches, lockstep rounds, and the records they leave."""

from prl.rollouts.agents import Agent, Agents, Reply, Setting
from prl.rollouts.chat import Chat
from prl.rollouts.episodes import Play, Played, play_all
from prl.rollouts.lockstep import Lockstep

__all__ = ["Agent", "Agents", "Chat", "Lockstep", "Play", "Played", "Reply", "Setting", "play_all"]
