"""What samples and scores for a Runner: the policy's engine at a known version, and clients of frozen models."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from prl import collect
from prl.algorithms import Algorithm
from prl.config import FrozenModel, Sampling
from prl.engines.base import Engine
from prl.overlap import Weights
from prl.references import Scorers
from prl.rollouts import Chat, Lockstep, Setting
from prl.sources import Stream
from prl.types import Commit, Groups


class Serving:
    """The engine with the weights it holds, and one client for each (environment, frozen model)."""

    def __init__(self, engine: Engine, renderer: Any, tokenizer: Any, context: int, loop: Any) -> None:
        self.engine, self.renderer, self.tokenizer, self.context = engine, renderer, tokenizer, context
        self._loop, self.version, self._held = loop, 0, 0
        self._chats: dict[tuple[str, FrozenModel], Chat] = {}
        self._scores: dict[tuple[str, FrozenModel], Engine] = {}

    def bring(self, weights: Weights) -> None:
        """Load the weights into the engine, unless it holds them."""
        if self._held != weights.number:
            self.engine.load_weights(weights.tensors.items(), weights.version)
            self._held, self.version = weights.number, weights.version

    def setting(self, sampling: Sampling) -> Setting:
        """What the agents of one rollout share."""
        lockstep = Lockstep(self.engine)
        self._loop.on_stall = lockstep.on_stall
        return Setting(lockstep, self.renderer, sampling, self.context)

    @property
    def scorers(self) -> Scorers:
        """Who answers references."""
        return Scorers(self.engine, self.version, self._frozen_score, self.renderer, self.tokenizer)

    def chat(self, env: str, model: FrozenModel) -> Chat:
        """The environment's client of a model that speaks."""
        if (env, model) not in self._chats:
            from prl.engines.chat import ChatEngine

            self._chats[env, model] = ChatEngine(model)
        return self._chats[env, model]

    async def _frozen_score(self, env: str, model: FrozenModel, token_ids: np.ndarray) -> np.ndarray:
        if (env, model) not in self._scores:
            from prl.engines.server import ServerEngine

            self._scores[env, model] = ServerEngine.from_frozen(model)
        return (await self._scores[env, model].score([token_ids]))[0]


class Collector:
    """The stages up to a step's groups, with a Runner's settings; each starts from the commit and weights given."""

    def __init__(
        self,
        streams: Sequence[Stream],
        serving: Serving,
        sampling: Sampling,
        batch_size: int,
        replace_silent: bool,
        seed: int,
    ) -> None:
        self._streams, self._serving, self._sampling, self._seed = streams, serving, sampling, seed
        self._batch_size, self._replace_silent = batch_size, replace_silent

    async def rollout(self, commit: Commit, draws: int, weights: Weights) -> Groups:
        """The next groups, sampled by these weights."""
        self._serving.bring(weights)
        setting = self._serving.setting(self._sampling)
        return await collect.rollout(self._streams, commit, draws, self._seed, setting, self._serving.chat)

    async def score(self, groups: Groups, weights: Weights, instead: Algorithm | None = None) -> Groups:
        """References, "policy" being these weights, and credit."""
        self._serving.bring(weights)
        return await collect.score(self._streams, groups, self._serving.scorers, instead=instead)

    async def collect(self, commit: Commit, weights: Weights) -> Groups:
        """Waves of rollout, score and admit until the batch is full."""

        async def wave(commit: Commit, draws: int) -> Groups:
            rolled = await self.rollout(commit, draws, weights)
            return collect.admit(self._streams, await self.score(rolled, weights))

        return await collect.collect(
            wave, self._streams, commit, self._batch_size, replace_silent=self._replace_silent
        )  # fmt: skip

    async def evaluate(self, split: str, n: int, k: int, sampling: Sampling, weights: Weights) -> list[dict[str, Any]]:
        """One row per sample, drawn from these weights."""
        self._serving.bring(weights)
        setting = self._serving.setting(sampling)
        return await collect.evaluate(self._streams, split, n, k, self._seed, setting, self._serving.chat)
