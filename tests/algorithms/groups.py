"""Groups built by hand, for every algorithm's tests."""

import numpy as np

from prl.trajectories import interleave
from prl.types import ROLES, Episode, Group, Step, Task, Trace

USER, TOOL = ROLES.index("user"), ROLES.index("tool")


def trace(name, reward, completion, *, agent="agent", **settings):
    """One call: two prompt tokens, then the completion."""
    step = Step(np.array([1, 2]), np.array(completion), np.full(len(completion), -1.0, np.float32))
    return of_steps(name, reward, [step], agent=agent, **settings)


def of_steps(name, reward, steps, *, agent="agent", **settings):
    return Trace(name, agent, tuple(steps), tuple(interleave(steps, id=name)), reward, **settings)


def tool_trace(name, reward):
    """1 2 -> 3; the tool answers 4 5, of which 5 is the body; -> 6 7. One sample of seven tokens."""
    first = Step([1, 2], [3], [-1.0], prompt_roles=[USER, USER], prompt_content=[False, True])
    roles, content = [USER, USER, 0, TOOL, TOOL], [False, True, False, False, True]
    second = Step([1, 2, 3, 4, 5], [6, 7], [-1.0, -1.0], prompt_roles=roles, prompt_content=content)
    return of_steps(name, reward, [first, second])


def group(*traces, task=None, episodes=None):
    """Each trace an episode of its own, or `episodes`: lists of traces."""
    split = [[t] for t in traces] if episodes is None else episodes
    made = tuple(Episode(f"e{i}", tuple(part)) for i, part in enumerate(split))
    return Group("g", "env", task or Task("k", "q"), made)


def streams(scored, name="advantages"):
    """The stream of each sample as a list of float32 numbers, None where it has none."""
    return [None if (s := getattr(x, name)) is None else s.tolist() for x in scored.samples]


def f32(rows):
    return [np.asarray(row, np.float32).tolist() for row in rows]


def untouched(rows):
    names = ("advantages", "ref_logprobs", "rl_weights", "ce_weights", "ref_kl_weights")
    return all(getattr(sample, name) is None for sample in rows.samples for name in names)
