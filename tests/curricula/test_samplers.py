"""Difficulty pools: rows by hand, frequencies, state, errors."""

import copy
import json
from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from prl.curricula import Curriculum, DifficultyPoolSampler, Pool, TaskSampler
from prl.errors import ConfigError
from prl.types import Episode, Group, Task, Trace, TrainingSample

PAGE = {"hard": (0.25, 0.2), "normal": (0.75, 1.0), "easy": (1.0, 0.2)}  # the example of the algorithms page
TASKS = [Task(f"t{i}", f"question {i}") for i in range(6)]
LAW = settings(deadline=None, max_examples=50)


def trace(id, reward, **options):
    mask = np.array([False, True])
    return Trace(id, "agent", (), [TrainingSample(f"{id}#0", [1, 2], mask, -1.0 * mask)], reward, **options)


def group(key, *rewards, **options):
    traces = [trace(f"r{i}", reward, **options) for i, reward in enumerate(rewards)]
    return Group(f"env/{key}@0", "env", Task(key, "q"), [Episode(t.id, [t]) for t in traces])


def seen(pools=PAGE, **rewards):
    """A sampler that observed one group of the given mean for each task."""
    sampler = DifficultyPoolSampler(pools)
    for key, reward in rewards.items():
        sampler.observe(group(key, reward))
    return sampler


def keys(sampler, n, seed=0, tasks=TASKS):
    rng = Random(seed)
    return [sampler.sample(tasks, draw, rng).key for draw in range(n)]


@pytest.mark.parametrize(
    ("reward", "pool"),
    [
        (0.0, "hard"), (-3.0, "hard"), (0.25, "hard"),  # the threshold is inclusive
        (0.2500001, "normal"), (0.75, "normal"), (0.76, "easy"), (1.0, "easy"), (17.0, "easy"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("order", [("hard", "normal", "easy"), ("easy", "hard", "normal")])
def test_the_pool_of_a_reward_whatever_the_order_of_the_settings(reward, pool, order):
    sampler = seen({name: PAGE[name] for name in order}, t0=reward)
    assert sampler.pool_of("t0") == pool and sampler.pool_of("t1") is None
    assert list(sampler.pools) == ["hard", "normal", "easy"]


def test_the_mean_of_a_group_decides_and_the_latest_one_counts():
    sampler = DifficultyPoolSampler(PAGE)
    sampler.observe(group("t0", 1, 0, 0, 0))  # mean 1/4
    assert sampler.pool_of("t0") == "hard"
    sampler.observe(group("t0", 1, 1, 0, 0))
    assert sampler.pool_of("t0") == "normal"
    sampler.observe(group("t0", 1, 1, 1, 1))
    assert sampler.pool_of("t0") == "easy" and sampler.state_dict() == {"rewards": {"t0": 1.0}}


@LAW
@given(st.floats(0, 1), st.integers(1, 70))
def test_equal_rewards_at_a_threshold_stay_in_its_pool(reward, n):
    # A mean that rounds up by one bit would fall into the next pool.
    sampler = DifficultyPoolSampler({"low": (reward, 1.0), "high": (2.0, 1.0)})
    sampler.observe(group("t0", *[reward] * n))
    assert sampler.pool_of("t0") == "low"


def test_rollouts_that_do_not_count_change_nothing():
    sampler = seen(t0=1.0)
    for options in ({"valid": False}, {"trainable": False}):
        sampler.observe(group("t0", 0.0, 0.0, **options))
    sampler.observe(Group("env/t0@1", "env", TASKS[0], [Episode("e", [trace("r", 0.0)], error="Traceback ...")]))
    sampler.observe(group("t1", float("nan"), valid=False))
    assert sampler.state_dict() == {"rewards": {"t0": 1.0}}
    mixed = Group("g", "env", TASKS[2], [Episode("e", [trace("a", 1.0), trace("b", float("nan"), valid=False)])])
    sampler.observe(mixed)
    assert sampler.state_dict()["rewards"]["t2"] == 1.0


def test_draws_by_hand():
    # Weights .2 (hard), 1 (normal), .2 (easy), 1 (not seen): ends at .2, 1.2, 1.4, 2.4.
    sampler, tasks = seen(t0=0.0, t1=0.5, t2=1.0), TASKS[:4]

    class Fixed(Random):
        def random(self):
            return self.value

    rng, got = Fixed(), []
    for at in (0.0, 0.19, 0.2001, 1.19, 1.2001, 1.39, 1.4001, 2.39):
        rng.value = at / 2.4
        got.append(sampler.sample(tasks, 0, rng).key)
    assert got == ["t0", "t0", "t1", "t1", "t2", "t2", "t3", "t3"]


@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_pool_of_weight_zero_is_never_drawn(where):
    rewards = {"first": dict(t0=0.0), "middle": dict(t2=0.0, t3=0.0), "last": dict(t5=0.0)}[where]
    sampler = seen({"off": (0.5, 0), "on": (1.0, 1)}, **rewards)

    class Edge(Random):
        def random(self):
            return next(self.values)

    rng = Edge()
    rng.values = iter([0.0, 1 / 6, 1 / 3, 1 / 2, 2 / 3, 5 / 6, 1 - 2**-53] + [i / 997 for i in range(997)])
    got = {sampler.sample(TASKS, 0, rng).key for _ in range(1004)}
    assert got == {task.key for task in TASKS} - set(rewards)


def test_a_new_observation_acts_on_the_next_draw():
    sampler = DifficultyPoolSampler({"off": (0.5, 0.0), "on": (1.0, 1.0)})
    rng = Random(0)
    for left in range(len(TASKS), 1, -1):
        key = sampler.sample(TASKS, 0, rng).key
        sampler.observe(group(key, 0.0))
        assert sampler.metrics()["seen"] == len(TASKS) - left + 1  # each task comes once, then never again
    assert len(set(keys(sampler, 50))) == 1


def test_frequencies_are_the_shares_of_weight():
    # A policy that never changes: each task always earns the same, and is observed after each draw.
    sampler, tasks = DifficultyPoolSampler(PAGE), [Task(f"t{i}", "q") for i in range(20)]
    earns = {task.key: (0.1, 0.5, 0.9, 1.0)[i % 4] for i, task in enumerate(tasks)}
    rng, counts = Random(3), Counter()
    for key, reward in earns.items():
        sampler.observe(group(key, reward))
    for draw in range(20_000):
        key = sampler.sample(tasks, draw, rng).key
        counts[key] += 1
        if draw % 100 == 0:
            sampler.observe(group(key, earns[key]))
    weights = np.array([(0.2, 1.0, 0.2, 0.2)[i % 4] for i in range(20)])
    test = chisquare([counts[task.key] for task in tasks], 20_000 * weights / weights.sum())
    assert test.pvalue > 0.01
    assert chisquare([counts[task.key] for task in tasks]).pvalue < 1e-9  # and the test can tell


def test_the_weight_belongs_to_the_task_and_not_to_the_pool():
    # Three normal tasks and one hard one: 3 : .2, not 1 : .2.
    got = Counter(keys(seen(t0=0.5, t1=0.5, t2=0.5, t3=0.0), 16_000, tasks=TASKS[:4]))
    assert got["t3"] / 16_000 == pytest.approx(0.2 / 3.2, abs=0.006)


def test_another_taskset_is_weighed_by_itself():
    sampler = seen({"off": (0.5, 0.0), "on": (1.0, 1.0)}, t0=0.0)
    assert "t0" not in keys(sampler, 100) and set(keys(sampler, 100, tasks=[TASKS[1]])) == {"t1"}


def test_draws_are_a_function_of_state_and_rng():
    one, two = seen(t0=0.0, t1=1.0), seen(t1=1.0, t0=0.0)
    assert keys(one, 200) == keys(two, 200) == keys(one, 200) != keys(one, 200, seed=1)


def test_a_saved_state_continues_the_run():
    def play(sampler, rng, n):
        drawn = []
        for draw in range(n):
            task = sampler.sample(TASKS, draw, rng)
            sampler.observe(group(task.key, (len(drawn) % 5) / 4, rng.random()))
            drawn.append(task.key)
        return drawn

    straight, first, rng = DifficultyPoolSampler(PAGE), DifficultyPoolSampler(PAGE), Random(1)
    want = play(straight, Random(1), 60)
    got = play(first, rng, 30)
    second = seen(t0=0.9, t5=0.1)  # whatever it held before is gone
    second.sample(TASKS, 0, Random(5))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.state_dict() == first.state_dict() and second.metrics() == first.metrics()
    state = rng.getstate()
    ahead = play(first, rng, 30)
    rng.setstate(state)
    assert play(second, rng, 30) == ahead
    assert got == want[:30]


def test_the_state_that_was_given_or_taken_is_left_alone():
    sampler = seen(t0=0.0)
    taken = sampler.state_dict()
    other = DifficultyPoolSampler(PAGE)
    other.load_state_dict(taken)
    other.observe(group("t1", 1.0))
    assert taken == {"rewards": {"t0": 0.0}} and sampler.state_dict() == taken
    sampler.observe(group("t2", 1.0))
    assert taken == {"rewards": {"t0": 0.0}}


def test_a_deep_copy_goes_its_own_way():
    sampler = seen(t0=0.0)
    keys(sampler, 1)
    twin = copy.deepcopy(sampler)
    twin.observe(group("t0", 0.5))
    assert sampler.pool_of("t0") == "hard" and twin.pool_of("t0") == "normal"
    assert keys(sampler, 50) != keys(twin, 50)
    fresh = Curriculum(sampler).at({"sampler": {"rewards": {"t3": 0.5}}, "gates": {}})
    assert fresh.sampler.state_dict() == {"rewards": {"t3": 0.5}} and sampler.pool_of("t3") is None


def test_metrics_are_shares_of_the_tasks_that_were_seen():
    assert DifficultyPoolSampler(PAGE).metrics() == {"seen": 0.0}
    got = seen(t0=0.0, t1=0.1, t2=0.5, t3=0.6).metrics()
    assert got == {"seen": 4.0, "pool/hard": 0.5, "pool/normal": 0.5, "pool/easy": 0.0}


def test_thirty_thousand_tasks_are_weighed_once_for_many_draws():
    class Counting(list):
        passes = 0

        def __iter__(self):
            type(self).passes += 1
            return super().__iter__()

    tasks = Counting(Task(f"t{i}", "q") for i in range(30_000))
    sampler = seen(t5=0.0)
    assert len(set(keys(sampler, 500, tasks=tasks))) > 480 and Counting.passes == 1
    sampler.observe(group("t6", 0.0))
    keys(sampler, 500, tasks=tasks)
    assert Counting.passes == 2


BROKEN = {
    "no pool": ({}, "got no pools; need at least one"),
    "a negative weight": ({"a": (0.5, -1.0)}, "pool 'a' has threshold=0.5, weight=-1.0; need a finite threshold"),
    "a weight that is no number": ({"a": (0.5, float("nan"))}, "pool 'a' .* weight=nan; need"),
    "an infinite weight": ({"a": (0.5, float("inf"))}, "pool 'a' .* weight=inf; need"),
    "a threshold that is no number": ({"ok": (1, 1), "b": (float("nan"), 1.0)}, "pool 'b' has threshold=nan"),
    "one threshold twice": ({"a": (1, 1), "c": (0, 1), "b": (1.0, 2)}, "pools 'a' and 'b' have the same threshold 1"),
}


@pytest.mark.parametrize(("pools", "text"), BROKEN.values(), ids=BROKEN)
def test_settings_that_are_refused(pools, text):
    with pytest.raises(ConfigError, match=f"DifficultyPoolSampler: {text}"):
        DifficultyPoolSampler(pools)


def test_a_negative_threshold_is_a_reward_like_any_other():
    sampler = seen({"lost": (-0.5, 0.2), "won": (1.0, 1.0)}, t0=-1.0, t1=-0.4)
    assert [sampler.pool_of(key) for key in ("t0", "t1")] == ["lost", "won"]


def test_weights_that_are_all_zero_name_the_pools():
    sampler = seen({"hard": (0.25, 0), "normal": (0.75, 1.0), "easy": (1.0, 0)}, t0=0.0, t1=1.0, t2=0.1)
    with pytest.raises(ConfigError, match=r"all 3 are in pools of weight 0: 'hard' \(2 tasks\), 'easy' \(1 tasks\)"):
        keys(sampler, 1, tasks=TASKS[:3])
    assert set(keys(sampler, 20, tasks=TASKS[:4])) == {"t3"}


def test_a_taskset_without_end_or_without_tasks_is_refused():
    with pytest.raises(ConfigError, match="taskset is a generator without a length; need a finite sequence"):
        keys(DifficultyPoolSampler(PAGE), 1, tasks=(task for task in TASKS))
    with pytest.raises(ConfigError, match="no task can be drawn: .* no task at all"):
        keys(DifficultyPoolSampler(PAGE), 1, tasks=[])


def test_it_is_a_task_sampler_and_shows_its_pools():
    assert isinstance(DifficultyPoolSampler(PAGE), TaskSampler)
    assert repr(DifficultyPoolSampler({"all": Pool(1, 0.5)})) == "DifficultyPoolSampler(all <= 1 x0.5)"
