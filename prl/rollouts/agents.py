"""What an environment talks to: agents that render, sample and remember, and the branches they act in."""

import asyncio
from collections.abc import Collection, Coroutine, Mapping, Sequence
from numbers import Real
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from prl.config import Sampling
from prl.engines.base import Completion, Request
from prl.errors import DataError
from prl.randomness import Key
from prl.rollouts.chat import Chat, complete
from prl.rollouts.lockstep import Branch, Lockstep, current_branch
from prl.types import ROLES, Step

Message = Mapping[str, Any]
_ASSISTANT = ROLES.index("assistant")


class Reply(NamedTuple):
    """What the model said, parsed. `truncated`: it ran out of tokens before its stop token."""

    content: str
    reasoning: str | None
    tool_calls: tuple[Any, ...]
    truncated: bool


@runtime_checkable
class Renderer(Protocol):
    """What agents use of a renderer of the `renderers` package."""

    def render(self, messages: Any, *, tools: Any = None, add_generation_prompt: bool = False) -> Any: ...
    def parse_response(self, token_ids: list[int], *, tools: Any = None, prompt_ids: Any = None) -> Any: ...
    def bridge_to_next_turn(
        self, prompt_ids: Any, completion_ids: Any, new_messages: Any, *, tools: Any = None
    ) -> Any: ...
    def get_stop_token_ids(self) -> list[int]: ...


class Setting(NamedTuple):
    """What all agents of a rollout share. `sampling.stop` holds token ids; `context` is the model's, in tokens."""

    lockstep: Lockstep
    renderer: Renderer
    sampling: Sampling
    context: int


class _Tokens(NamedTuple):
    """A prompt, or a prompt with its completion: ids and what is known of each token."""

    ids: np.ndarray
    roles: np.ndarray
    content: np.ndarray
    messages: np.ndarray


class Agent:
    """One conversation of one role. Its history grows by `respond` only, so each prompt extends the last one.

    `chat` is the frozen model that speaks for the role; None is the policy. Not `trainable`: nothing learns from it.
    """

    def __init__(
        self, role: str, label: str, key: Key, setting: Setting, chat: Chat | None = None, trainable: bool = True
    ) -> None:
        self.role, self.label, self.trainable = role, label, trainable
        self.steps: list[Step] = []
        self.messages: list[Message] = []
        self._key, self._setting, self._chat = key, setting, chat
        self._window: list[int] = []  # indices into messages that the model sees now
        self._asking = False
        self._seen: _Tokens | None = None  # last prompt + completion; None: render from scratch

    async def respond(self, messages: str | Sequence[Message], *, tools: Any = None) -> Reply:
        """The model's reply to what is NEW since its last one; a string is one user message.

        Raises:
          DataError: malformed messages, a prompt that leaves no room in the model's context, or
            a call while the agent waits for its last reply.
        """
        if self._asking:
            raise DataError(
                f"Episode {current_branch.get().episode!r}: agent {self.label!r} asks while it waits for its last "
                "reply. An agent is one conversation; agents.new(role) gives each branch its own."
            )
        new = _checked(messages, self.label)
        if not new:
            raise DataError(f"Agent {self.label!r}: got no message to respond to.")
        if any(message["role"] == "assistant" for message in new):
            raise DataError(f"Agent {self.label!r}: got an assistant message; respond() takes only what is new to it.")
        prompt = self._prompt(new, tools)
        if len(prompt.ids) >= self._setting.context:
            raise DataError(
                f"Agent {self.label!r}, turn {len(self.steps)}: the prompt has {len(prompt.ids)} tokens, the model's "
                f"context is {self._setting.context}. Shorten the task, or call restart(...) with a summary."
            )
        request = Request(prompt.ids, self._setting.sampling, (*self._key, len(self.steps)))
        self._asking = True
        try:
            completion = await self._ask(request, new, tools)
        finally:
            self._asking = False
        self._window += range(len(self.messages), len(self.messages) + len(new))
        self.messages += new
        return self._record(prompt, completion, tools)

    async def _ask(self, request: Request, new: list[Message], tools: Any) -> Completion:
        if self._chat is None:
            return await self._setting.lockstep.ask(request, self.label)
        shown = [self.messages[i] for i in self._window] + new
        return await complete(self._chat, request, shown, self._setting.renderer, tools)

    def restart(self, messages: Sequence[Message]) -> None:
        """Replace the history: the next prompt renders these messages and the new ones (compaction, hand-off)."""
        fresh = _checked(messages, self.label)
        self._window = list(range(len(self.messages), len(self.messages) + len(fresh)))
        self.messages += fresh
        self._seen = None

    def _prompt(self, new: list[Message], tools: Any) -> _Tokens:
        index = [*self._window, *range(len(self.messages), len(self.messages) + len(new))]
        if self._seen is not None:
            last, seen = self.steps[-1], self._seen
            prior = last.prompt_ids.tolist(), last.completion_ids.tolist()
            bridged = self._setting.renderer.bridge_to_next_turn(*prior, new, tools=tools)
            if bridged is not None and np.array_equal(bridged.token_ids[: len(seen.ids)], seen.ids):
                added = _attributed(bridged, index[-len(new) :], new)
                return _Tokens(*(np.concatenate([a, b[len(seen.ids) :]]) for a, b in zip(seen, added, strict=True)))
        shown = [self.messages[i] for i in self._window] + new
        rendered = self._setting.renderer.render(shown, tools=tools, add_generation_prompt=True)
        return _attributed(rendered, index, shown)

    def _record(self, prompt: _Tokens, completion: Any, tools: Any) -> Reply:
        truncated, ids = completion.finish_reason == "length", completion.token_ids
        self.steps.append(
            Step(
                prompt.ids, ids, completion.logprobs, prompt_roles=prompt.roles, prompt_content=prompt.content,
                prompt_messages=prompt.messages, agent=self.role, truncated=truncated, trainable=self.trainable,
                topk=completion.topk, version=completion.version, temperature=self._setting.sampling.temperature,
            )
        )  # fmt: skip
        parsed = self._setting.renderer.parse_response(ids.tolist(), tools=tools, prompt_ids=prompt.ids.tolist())
        reply = Reply(parsed.content or "", parsed.reasoning_content, tuple(parsed.tool_calls or ()), truncated)
        at = len(self.messages)
        said = {"role": "assistant", "content": reply.content}
        said |= {"reasoning_content": reply.reasoning} if reply.reasoning else {}
        said |= {"tool_calls": list(reply.tool_calls)} if reply.tool_calls else {}
        self.messages.append(said)
        self._window.append(at)
        n = len(ids)
        answer = _Tokens(ids, np.full(n, _ASSISTANT, np.int8), np.ones(n, np.bool_), np.full(n, at, np.int32))
        self._seen = _Tokens(*(np.concatenate(pair) for pair in zip(prompt, answer, strict=True)))
        return reply


class Agents:
    """The agents of one episode, and the only way to fork."""

    def __init__(
        self,
        roles: Sequence[str],
        key: Key,
        setting: Setting,
        chats: Mapping[str, Chat] = MappingProxyType({}),
        pinned: Collection[str] = (),
    ) -> None:
        self._roles, self._key, self._setting, self._chats, self._pinned = tuple(roles), key, setting, chats, pinned
        self._all: dict[tuple[int, tuple[int, ...], int], Agent] = {}

    def __getitem__(self, role: str) -> Agent:
        """The role's own agent, the same one at each call."""
        return self._agent(role, (), -1)

    def new(self, role: str) -> Agent:
        """Another agent of that role, with a history and a trace of its own."""
        branch = current_branch.get()
        branch.created += 1
        return self._agent(role, branch.path, branch.created)

    def _agent(self, role: str, path: tuple[int, ...], number: int) -> Agent:
        if role not in self._roles:
            raise DataError(f"agents: unknown role {role!r}; this environment declares {', '.join(self._roles)}.")
        place = (self._roles.index(role), path, number)
        if place not in self._all:
            label = role if number < 0 else f"{role}@{'.'.join(map(str, path))}#{number}"
            key, chat = (*self._key, label), self._chats.get(role)
            self._all[place] = Agent(role, label, key, self._setting, chat, role not in self._pinned)
        return self._all[place]

    async def gather(self, *coros: Coroutine[Any, Any, Any]) -> list[Any]:
        """Run branches at once; their results in order. The first error cancels the rest and is raised."""
        parent, lockstep = current_branch.get(), self._setting.lockstep
        fork, parent.forks = parent.forks, parent.forks + 1
        children = [Branch(parent.episode, (*parent.path, fork, i)) for i in range(len(coros))]
        left = set(children)
        for child in children:
            lockstep.enter(child)

        async def run(child: Branch, coro: Coroutine[Any, Any, Any]) -> Any:
            current_branch.set(child)
            try:
                return await coro
            except BaseException as error:
                lockstep.enter(parent)  # no round until the siblings are gone, whether or not they had asked
                if child.stalled and isinstance(error, asyncio.CancelledError):
                    raise DataError(child.stalled) from error
                raise
            finally:
                left.discard(child)
                if not left:
                    lockstep.enter(parent)  # before the last child leaves, or a round could start without the parent
                lockstep.leave(child)

        for child, coro in zip(children, coros, strict=True):
            child.task = asyncio.create_task(run(child, coro))
        if children:
            lockstep.leave(parent)
        return await _all_or_first_error([child.task for child in children if child.task is not None])

    def in_order(self) -> list[Agent]:
        """Agents that spoke, by role, then branch path, then order within the branch."""
        return [self._all[place] for place in sorted(self._all) if self._all[place].steps]

    def rewards(self, outcome: Any, *, needed: bool = True) -> dict[Agent, float]:
        """What `play` returned, as one number for each agent that spoke; None is 0.0 where no reward is needed.

        Raises:
          DataError: not a number, NaN or infinite, an unknown role, or an agent without one.
        """
        spoke = self.in_order()
        if outcome is None and not needed:
            return dict.fromkeys(spoke, 0.0)
        if not isinstance(outcome, Mapping):
            return {agent: _number(outcome, "play") for agent in spoke}
        known = {*self._roles, *self._all.values()}
        if odd := [key for key in outcome if key not in known]:
            raise DataError(f"play returned a reward for {odd[0]!r}; roles are {', '.join(self._roles)}.")
        if missing := [a.label for a in spoke if a not in outcome and a.role not in outcome]:
            raise DataError(f"play returned no reward for agent {missing[0]!r}, which spoke.")
        return {a: _number(outcome[a] if a in outcome else outcome[a.role], a.label) for a in spoke}


async def _all_or_first_error(tasks: "list[asyncio.Task[Any]]") -> list[Any]:
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _attributed(rendered: Any, index: Sequence[int], messages: Sequence[Message]) -> _Tokens:
    """Roles, body marks and message numbers of rendered tokens; zeros and -1 where the renderer does not say."""
    n = len(rendered.token_ids)
    local = (
        np.asarray(rendered.message_indices, np.int32)
        if len(rendered.message_indices) == n
        else np.full(n, -1, np.int32)
    )
    codes = [ROLES.index(m["role"]) if m["role"] in ROLES else 0 for m in messages]
    roles, message = np.zeros(n, np.int8), np.full(n, -1, np.int32)
    known = local >= 0
    roles[known], message[known] = np.asarray(codes)[local[known]], np.asarray(index)[local[known]]
    content = np.asarray(rendered.is_content, np.bool_) if len(rendered.is_content) == n else np.zeros(n, np.bool_)
    return _Tokens(np.asarray(rendered.token_ids, np.int32), roles, content, message)


def _checked(messages: str | Sequence[Message], agent: str) -> list[Message]:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise DataError(f"Agent {agent!r}: got {message!r}; a message is a dict with a 'role' and a 'content'.")
    return list(messages)


def _number(value: Any, where: str) -> float:
    if not isinstance(value, Real | np.generic | Tensor):
        raise DataError(f"Reward of {where}: got {value!r} of type {type(value).__name__}; need a finite number.")
    if not np.isfinite(float(value)):
        raise DataError(f"Reward of {where}: got {float(value)}; need a finite number.")
    return float(np.float32(value))
