# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 301 Mixing algorithms, one per environment
# Three environments train one policy: GRPO on a reward, MaxRL on a rarer one, distillation
# on a third. You will see which tokens belong to which component of the loss, that each
# has its own count, and that no component can soften another.
#
# Needs: CPU, no downloads, `prl[notebook]`. Runs in about a minute.

# %%
import itertools
import random
import warnings

import polars as pl
import torch

import prl

prl.check_types()

# %%
from prl import AdamW, Runner, Sampling, Source, frames, models, viz
from prl.algorithms import GRPO, MaxRL
from prl.engines import TorchEngine
from prl.types import Task, supervised

torch.set_num_threads(min(2, torch.get_num_threads()))  # a small model gains nothing from more
LETTERS = "abcdefghijklmnopqrstuvwxy"

# %% [markdown]
# ## 1. Three environments
# One task, cut in three by the first letter: say the letter after each of three, cat -> dbu.


# %%
class NextLetters:
    agents = ("agent",)

    def __init__(self, first):
        self.name, self.first = f"{first[0]} to {first[-1]}", first

    def tasks(self, split):
        words = ["".join(w) for w in itertools.product(self.first, LETTERS, LETTERS)]
        words = [w for i, w in enumerate(words) if (7 * i % 5 == 0) == (split == "test")]
        random.Random(0).shuffle(words)
        return [Task(w, w, answer="".join(chr(ord(c) + 1) for c in w)) for w in words]

    async def play(self, task, agents, rng):
        reply = await agents["agent"].respond(task.prompt)
        return float(reply.content == task.answer)


one, two, three = (NextLetters(first) for first in (LETTERS[:8], LETTERS[8:17], LETTERS[17:]))

# %% [markdown]
# ## 2. A policy, and a teacher for one environment


# %%
def answer_sample(policy, task):
    prompt = policy.renderer.render_ids([{"role": "user", "content": task.prompt}], add_generation_prompt=True)
    answer = policy.tokenizer.encode(task.answer) + policy.renderer.get_stop_token_ids()
    return supervised(prompt, answer, id=task.key)


policy, teacher = (models.tiny(hidden=64, layers=2, seed=0) for _ in range(2))
school = Runner(teacher, [one, two, three], optimizer=AdamW(lr=4e-3, betas=(0.9, 0.95)))
words, lesson, loss = school.tasks(), 0, 9.0
random.Random(0).shuffle(words)
while loss > 0.01:
    loss = school.update(school.pack([answer_sample(teacher, t) for t in words[lesson : lesson + 32]])).loss
    lesson = (lesson + 32) % (len(words) - 32)
    if loss > 0.15:  # the policy leaves here
        policy.module.load_state_dict(teacher.module.state_dict())

# %% [markdown]
# ## 3. An algorithm for each
# `Source` says what trains on an environment; what it leaves out is the Runner's.

# %%
scorer = TorchEngine(teacher.module)


async def teacher_logprobs(sample, models):
    return await models.score(scorer, sample.token_ids)


class Distil:
    component = "ref_kl"
    references = {"ref_logprobs": teacher_logprobs}

    def init_state(self):
        return {}

    def score_group(self, group, state):
        return group.assign(ref_kl_weights=torch.ones(len(group.traces))), state


# %%
runner = Runner(
    policy, [Source(one), Source(two, MaxRL()), Source(three, Distil(), group_size=4)], algorithm=GRPO(),
    group_size=8, batch_size=120, constant_trainer_batch_size=False, sampling=Sampling(max_tokens=6),
    optimizer=AdamW(lr=1e-3),
)  # fmt: skip
groups = runner.score(runner.rollout())
frames.groups(groups)

# %% [markdown]
# ## 4. Who belongs where
# Predict: which of the three weight streams does a token of `r to y` carry?

# %%
batch = runner.pack(groups)
for name in (one.name, two.name, three.name):
    samples = [s for s in batch.samples if s.id.startswith(name)]
    counts = {c: int(sum(s.members(c).sum() for s in samples)) for c in ("rl", "ce", "ref_kl")}
    print(f"{name}: {len(samples)} samples, member tokens {counts}")
print({name: count.item() for name, count in batch.counts.items()})

# %%
assert batch.counts["rl"] == sum(s.members("rl").sum() for s in batch.samples if not s.id.startswith(three.name))
assert batch.counts["ref_kl"] == sum(s.loss_mask.sum() for s in batch.samples if s.id.startswith(three.name))

# %%
text = viz.token_text(policy.tokenizer)
viz.token_html(next(g for g in groups if g.env == three.name), text)

# %% [markdown]
# ## 5. Nobody softens anybody
# The rl loss of each token, and its share in the sum, stay what they are when the
# distilled samples leave the batch: each component is divided by its own count.

# %%
alone = runner.pack([s for s in batch.samples if s.members("rl").any()])
assert alone.counts["rl"] == batch.counts["rl"] and alone.counts["ref_kl"] == 0


def rl_sum(batch):
    loss = runner.losses(batch)["ipo"]["rl"].per_token
    weights = [torch.nn.functional.pad(r.rl_weights, (0, loss.shape[1] - r.rl_weights.shape[1])) for r in batch.rows]
    return (loss * torch.cat(weights)).sum() / batch.counts["rl"]


torch.testing.assert_close(rl_sum(alone), rl_sum(batch), rtol=1e-5, atol=1e-7)

# %% [markdown]
# ## 6. Train

# %%
before = runner.evaluate("test", 100).group_by("env").agg(exact=pl.col("exact").mean()).sort("env")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a notebook without widgets gets a plain progress bar
    runner.fit(30)

# %%
viz.history(runner.history)

# %%
after = runner.evaluate("test", 100).group_by("env").agg(exact=pl.col("exact").mean()).sort("env")
print(before.join(after, on="env", suffix=" after"))
assert after["exact"].mean() > before["exact"].mean()

# %% [markdown]
# ## Try this
# - Give `a to h` `GRPO(loss_aggregation="prompt")` and leave MaxRL as it is. Read the error.
# - Write the same run as a file for `python -m prl run`.
