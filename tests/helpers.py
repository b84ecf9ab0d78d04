"""What tests of rollouts, Runner and checkpoints share: small models, environments of a function, fingerprints."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from prl.config import AdamW, Sampling
from prl.engines.base import Request
from prl.engines.scripted import ScriptedEngine
from prl.learner import Learned, learn
from prl.loop import LoopThread
from prl.models import tiny
from prl.policy import Policy
from prl.rollouts import Lockstep, Play, Played, Setting, play_all
from prl.runner import Runner
from prl.types import Task

END = 257  # <|im_end|> of the byte tokenizer


def small(*, max_positions: int = 256, **changes: Any) -> Policy:
    """A model of a few thousand parameters."""
    shape = dict(hidden=32, layers=1, heads=2, kv_heads=1, intermediate=64, vocab_size=260)
    return tiny(max_positions=max_positions, **{**shape, **changes})


class PlayEnv:
    """An environment from a play function; four training tasks and four test tasks."""

    def __init__(self, play: Callable[..., Any], *, name: str = "env", agents: tuple[str, ...] = ("agent",)) -> None:
        self.name, self.agents, self._play = name, agents, play

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}{i}", f"{split} question {i}", answer=str(i)) for i in range(4)]

    async def play(self, task: Task, agents: Any, rng: Any) -> Any:
        return await self._play(task, agents, rng)


async def one_reply(task: Task, agents: Any, rng: Any) -> float:
    """Ask once; pay by the bytes of the answer, so that rewards differ within a group."""
    reply = await agents["agent"].respond(task.prompt)
    return pay(reply.content)


def pay(text: str) -> float:
    return sum(text.encode()) % 5 / 4


def runner(env: Any = None, **changes: Any) -> Runner:
    """A Runner whose step takes some ten milliseconds, with weights that move visibly."""
    settings = dict(group_size=4, batch_size=8, sampling=Sampling(max_tokens=5), optimizer=AdamW(lr=1e-2))
    return Runner(changes.pop("model", None) or small(), env or PlayEnv(one_reply), **{**settings, **changes})


def weights(run: Runner) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in run.model.parameters()])


class Memory(NamedTuple):
    seen: dict
    total: torch.Tensor


class Remember:
    """An algorithm with state: rewards minus the mean of every reward it ever saw."""

    component = "rl"

    def init_state(self) -> Memory:
        return Memory({}, torch.zeros(2))

    def score_group(self, group: Any, state: Memory) -> tuple[Any, Memory]:
        r = group.rewards
        total = state.total + torch.tensor([r.sum(), len(r)])
        seen = {**state.seen, group.task.key: state.seen.get(group.task.key, 0) + 1}
        return group.assign(advantages=r - total[0] / total[1]), Memory(seen, total)


def play_tasks(
    play: Callable[..., Any],
    engine: Any,
    *,
    episodes: int = 3,
    agents: tuple[str, ...] = ("agent",),
    sampling: Sampling | None = None,
    policy: Policy | None = None,
) -> list[Played]:
    """Episodes e0, e1, ... of a play function on a loop of their own."""
    policy = policy or small()
    lockstep, thread = Lockstep(engine), LoopThread()
    thread.loop.on_stall = lockstep.on_stall
    stop = {"stop": (END,)}
    setting = Setting(lockstep, policy.renderer, (sampling or Sampling()).model_copy(update=stop), policy.context)
    env = PlayEnv(play, agents=agents)
    plays = [Play(f"e{i}", env, Task(f"t{i}", f"question {i}"), (0, "train", "env", 0, i)) for i in range(episodes)]
    try:
        return thread.run(play_all(plays, setting))
    finally:
        thread.close()


def saying(text: str) -> ScriptedEngine:
    """An engine that always says the same and stops."""
    return ScriptedEngine(lambda request: [*text.encode(), END])


def echoing() -> ScriptedEngine:
    """An engine that repeats the last user message, which it finds in the prompt's tokens."""
    return ScriptedEngine(lambda request: [*last_message(request).encode(), END])


def last_message(request: Request) -> str:
    text = bytes(t if t < 256 else 0 for t in request.prompt_ids.tolist()).split(b"\0")
    return text[-3].partition(b"\n")[2].decode()


def errors(played: list[Played]) -> list[str | None]:
    return [None if p.error is None else f"{type(p.error).__name__}: {p.error}" for p in played]


def fingerprint(value: Any) -> Any:
    """Every id, token, number and bit of episodes, groups, batches and reports, comparable with ==."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, float):
        return value.hex()
    if hasattr(value, "_asdict"):
        return fingerprint({k: v for k, v in value._asdict().items() if k not in ("seconds", "error")})
    if hasattr(value, "__dataclass_fields__"):
        return fingerprint({k: getattr(value, k) for k in value.__dataclass_fields__})
    if isinstance(value, dict):
        return {k: fingerprint(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [fingerprint(v) for v in value]
    return value


def run_learn(*args: Any) -> Learned:
    """`learn` outside a Runner's loop."""
    return asyncio.run(learn(*args))
