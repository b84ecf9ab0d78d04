"""Every reasoning-gym task as a single-turn environment, scored by its own verifier."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from difflib import get_close_matches
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np

from prl.errors import ConfigError
from prl.types import Task

SPLITS = ("train", "test")


class ReasoningGym:
    """One task of reasoning-gym. The reward is its verifier's score of the whole reply, 1.0 for a full answer.

    size:       items drawn from the generator; tasks with the same question count once.
                Most generators make thousands a second, countdown 40, knight_swap 1.
    seed:       of the generator, whose item i depends on seed + i.
    test_share: fraction of questions held out. Which side a question falls on depends
                on its text alone, case and spacing aside, so no seed or size moves a
                test question into train.
    exact:      pay 1.0 for a full score and 0.0 for less, instead of partial credit.
    config:     the task's own settings, such as min_word_len=3.

    A task's `answer` is None where many answers are right. Its `info` is the entry that
    the verifier takes. A reply that makes the verifier raise scores 0.0. Some verifiers
    evaluate the reply as a Python expression. Three tasks draw other questions in each
    process unless PYTHONHASHSEED is set: isomorphic_strings, polynomial_multiplication,
    ransom_note.

    Raises:
      ConfigError: unknown task or setting, a setting that the task refuses, size < 1,
        or test_share outside (0, 1).
    """

    agents: tuple[str, ...] = ("agent",)

    def __init__(
        self,
        name: str,
        *,
        size: int = 10_000,
        seed: int = 0,
        test_share: float = 0.2,
        exact: bool = False,
        **config: Any,
    ) -> None:
        if size < 1:
            raise ConfigError(f"ReasoningGym({name!r}): got size={size}; need at least 1.")
        if not 0 < test_share < 1:
            raise ConfigError(f"ReasoningGym({name!r}): got test_share={test_share}; need a number between 0 and 1.")
        self.name = name
        self.seed = seed
        self.test_share = test_share
        self.exact = exact
        self._dataset = _dataset(name, {**config, "size": size, "seed": seed})

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of "train" or "test", in the order they were drawn; built at the first call.

        Keys are a hash of the question: the same whatever the seed, size and position.

        Raises:
          ConfigError: another split, or one that no question fell into.
        """
        if split not in SPLITS:
            raise ConfigError(f"ReasoningGym({self.name!r}).tasks({split!r}): unknown split; train or test.")
        if not self._splits[split]:
            total = sum(map(len, self._splits.values()))
            raise ConfigError(
                f"ReasoningGym({self.name!r}).tasks({split!r}): none of the {total} distinct questions is in it. "
                "Draw more (size=...) or change test_share."
            )
        return self._splits[split]

    async def play(self, task: Task, agents: Any, rng: random.Random) -> float:
        """One question, one reply, one score."""
        reply = await agents["agent"].respond(task.prompt)
        return self.score(task, reply.content)

    def score(self, task: Task, answer: str) -> float:
        """The verifier's score of an answer, from 0.0 to 1.0; only 0.0 or 1.0 with `exact`."""
        try:
            score = float(self._dataset.score_answer(answer, dict(task.info)))
        except Exception:  # verifiers parse the model's text; several raise on text they do not expect
            return 0.0
        return float(score == 1.0) if self.exact else score

    @cached_property
    def _splits(self) -> dict[str, tuple[Task, ...]]:
        entries: dict[str, Mapping[str, Any]] = {}
        with _global_generators(self.seed):
            for entry in self._dataset:
                entries.setdefault(entry["question"], entry)
        splits: dict[str, list[Task]] = {split: [] for split in SPLITS}
        for question, entry in entries.items():
            key = blake2b(question.encode(), digest_size=16).hexdigest()
            place = blake2b(" ".join(question.casefold().split()).encode(), digest_size=8).digest()
            is_test = int.from_bytes(place) < self.test_share * 2**64
            task = Task(f"{self.name}-{key}", question, entry["answer"], entry)
            splits["test" if is_test else "train"].append(task)
        return {split: tuple(tasks) for split, tasks in splits.items()}


def _dataset(name: str, config: Mapping[str, Any]) -> Any:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if name not in DATASETS:
        nearest = get_close_matches(name, DATASETS, n=1, cutoff=0)[0]
        raise ConfigError(f"ReasoningGym({name!r}): no such task; did you mean {nearest!r}?")
    known = [field.name for field in fields(DATASETS[name][1])]
    if unknown := sorted(set(config) - set(known)):
        valid = ", ".join(key for key in known if key not in ("seed", "size"))
        raise ConfigError(f"ReasoningGym({name!r}): no setting {', '.join(unknown)}; it has {valid}.")
    try:
        return reasoning_gym.create_dataset(name, **config)
    except AssertionError as error:
        raise ConfigError(f"ReasoningGym({name!r}): the task refuses its settings: {error}.") from error


@contextmanager
def _global_generators(seed: int) -> Iterator[None]:
    """A few tasks draw from the global generators of Python or numpy, or reseed them: seeded here, then put back."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
