"""reasoning-gym: the verifier's reward, and a test split that train can never reach."""

import asyncio
import json
import pickle
import random
import subprocess
import sys
from types import SimpleNamespace

import pytest

from prl.envs import ReasoningGym
from prl.errors import ConfigError

FAST = ("spell_backward", "chain_sum", "propositional_logic", "list_functions", "pool_matrix", "leg_counting")


class Says:
    """An agent with one answer to everything."""

    def __init__(self, content):
        self.content, self.heard = content, []

    async def respond(self, messages):
        self.heard.append(messages)
        return SimpleNamespace(content=self.content)


def play(env, task, content):
    agent = Says(content)
    reward = asyncio.run(env.play(task, {"agent": agent}, random.Random(0)))
    assert agent.heard == [task.prompt]
    return reward


def python(code):
    """What the code prints in a fresh interpreter."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout


def words(**config):
    return ReasoningGym("spell_backward", **{"size": 50, "min_word_len": 4, "max_word_len": 4} | config)


def test_a_task():
    env = words()
    task = env.tasks("train")[0]
    word = task.info["metadata"]["word"]
    assert (task.prompt, task.answer) == (f"Spell this word backward (example: sun -> nus): {word}", word[::-1])
    assert (env.name, env.agents) == ("spell_backward", ("agent",))


def test_reward_is_the_verifiers():
    env = words()
    task = env.tasks("train")[0]
    assert play(env, task, task.answer) == 1.0
    assert play(env, task, task.answer[:2]) == 0.5  # two of four letters in place
    assert play(env, task, "") == 0.0


def test_a_reply_that_breaks_the_verifier_scores_zero():
    env = ReasoningGym("prime_factorization", size=5)
    task = env.tasks("train")[0]
    assert play(env, task, "no idea") == 0.0
    assert play(env, task, task.answer) == 1.0


@pytest.mark.parametrize("name", FAST)
def test_no_text_is_in_both_splits_whatever_the_seeds(name):
    envs = [ReasoningGym(name, size=size, seed=seed) for size, seed in [(300, 0), (200, 1), (300, 12345)]]
    text = {split: {task.prompt for env in envs for task in env.tasks(split)} for split in ("train", "test")}
    assert text["train"] and text["test"]
    assert not text["train"] & text["test"]


@pytest.mark.parametrize("name", FAST)
def test_keys_are_unique_and_stand_for_the_text(name):
    keys = {}
    for seed in (0, 7):
        env = ReasoningGym(name, size=200, seed=seed)
        tasks = [task for split in ("train", "test") for task in env.tasks(split)]
        assert len({task.key for task in tasks}) == len({task.prompt for task in tasks}) == len(tasks)
        for task in tasks:
            assert keys.setdefault(task.prompt, task.key) == task.key  # seeds 0 and 7 share most items


@pytest.mark.parametrize("name", FAST)
def test_building_again_gives_the_same_tasks(name):
    assert ReasoningGym(name, size=40).tasks("train") == ReasoningGym(name, size=40).tasks("train")


# list_functions draws from Python's global generator, pool_matrix reseeds numpy's.
ANOTHER_PROCESS = """
import random, numpy
from prl.envs import ReasoningGym
envs = [ReasoningGym(name, size=20, seed=3) for name in ("list_functions", "pool_matrix")]
before = random.getstate(), numpy.random.get_state()[1].tolist()
for env in envs:
    tasks = env.tasks("train")
    assert (random.getstate(), numpy.random.get_state()[1].tolist()) == before
    print(*[task.key for task in tasks])
"""


def test_another_process_draws_the_same_and_global_generators_stay_as_they_were():
    envs = [ReasoningGym(name, size=20, seed=3) for name in ("list_functions", "pool_matrix")]
    assert python(ANOTHER_PROCESS).split() == [task.key for env in envs for task in env.tasks("train")]


def test_drawn_order_and_a_larger_size_extends_a_smaller():
    small, large = (words(size=size).tasks("train") for size in (30, 60))
    assert large[: len(small)] == small


def test_share_of_the_test_split():
    env = words(size=3000, max_word_len=10)
    train, test = (len(env.tasks(split)) for split in ("train", "test"))
    assert 0.17 < test / (train + test) < 0.23  # 0.2, and 4 standard deviations of 3000 draws


def test_a_larger_share_only_adds_to_the_test_split():
    small, large = ({t.key for t in words(test_share=share).tasks("test")} for share in (0.2, 0.5))
    assert small < large


def test_tasks_are_built_once():
    env = words()
    assert env.tasks("train") is env.tasks("train")


@pytest.mark.parametrize("name", FAST)
def test_tasks_are_plain_data(name):
    tasks = ReasoningGym(name, size=20).tasks("train")
    json.dumps([task.info for task in tasks])
    assert pickle.loads(pickle.dumps(tasks)) == tasks


def test_importing_the_environments_does_not_load_the_library():
    assert python("import sys, prl.envs; print('reasoning_gym' in sys.modules)") == "False\n"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ReasoningGym("spel_backward"), "no such task; did you mean 'spell_backward'"),
        (lambda: words(word_len=3), "no setting word_len; it has min_word_len, max_word_len, data_file"),
        (lambda: words(min_word_len=9), "refuses its settings: max_word_len must be >= min_word_len"),
        (lambda: words(size=0), "got size=0; need at least 1"),
        (lambda: words(test_share=1.0), "got test_share=1.0; need a number between 0 and 1"),
        (lambda: words().tasks("valid"), r"tasks\('valid'\): unknown split; train or test"),
        (lambda: words(size=2, test_share=1e-9).tasks("test"), "none of the 2 distinct questions is in it"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
