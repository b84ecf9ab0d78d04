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
# # 202 On-policy distillation
# The student writes, the teacher says how likely it finds each token, and the difference
# is the training signal: no reward, a signal on every token. You will look at that signal,
# check the loss by hand, and watch a student catch up.
#
# Needs: CPU, no downloads, `prl[envs,notebook]`. Runs in about a minute.

# %%
import itertools
import random
import warnings

import torch

import prl

prl.check_types()

# %%
from prl import AdamW, Runner, Sampling, models, viz
from prl.algorithms import OPD
from prl.config import FrozenModel
from prl.engines import TorchEngine
from prl.types import Task, supervised

torch.set_num_threads(min(2, torch.get_num_threads()))  # a small model gains nothing from more

# %% [markdown]
# ## 1. A task in the cell
# An environment is a name, its agents, its tasks, and how an episode is played. This one
# asks for the letter after each of three letters: `cat` becomes `dbu`.


# %%
class NextLetters:
    name, agents = "next-letters", ("agent",)

    def tasks(self, split):
        words = ["".join(w) for w in itertools.product("abcdefghijklmnopqrstuvwxy", repeat=3)]
        words = [w for i, w in enumerate(words) if (7 * i % 5 == 0) == (split == "test")]
        random.Random(0).shuffle(words)
        return [Task(w, w, answer="".join(chr(ord(c) + 1) for c in w)) for w in words]

    async def play(self, task, agents, rng):
        reply = await agents["agent"].respond(task.prompt)
        return float(reply.content == task.answer)


env = NextLetters()
train = env.tasks("train")
print(f"{len(train)} training words, the first: {train[0].prompt!r} -> {train[0].answer!r}")

# %% [markdown]
# ## 2. A teacher and a student
# One small model goes to school on the answers. The student is a copy that left early,
# the teacher stayed.


# %%
def answer_sample(policy, task):
    prompt = policy.renderer.render_ids([{"role": "user", "content": task.prompt}], add_generation_prompt=True)
    answer = policy.tokenizer.encode(task.answer) + policy.renderer.get_stop_token_ids()
    return supervised(prompt, answer, id=task.key)


# %%
teacher, student = (models.tiny(hidden=64, layers=2, seed=0) for _ in range(2))
school = Runner(teacher, env, optimizer=AdamW(lr=4e-3, betas=(0.9, 0.95)))
lesson, loss = 0, 9.0
while loss > 0.01:
    loss = school.update(school.pack([answer_sample(teacher, t) for t in train[lesson : lesson + 32]])).loss
    lesson = (lesson + 32) % (len(train) - 32)
    if loss > 0.15:  # the student leaves here
        student.module.load_state_dict(teacher.module.state_dict())
print(f"cross-entropy of the answers at the end of school: {loss:.3f} nats per byte")

# %%
sampling = Sampling(max_tokens=6)
exam = Runner(teacher, env, sampling=sampling)
teacher_accuracy = exam.evaluate("test", 256)["exact"].mean()
print(f"the teacher gets {teacher_accuracy:.0%} of held-out words right")
assert not {t.prompt for t in train} & {t.prompt for t in env.tasks("test")}

# %% [markdown]
# ## 3. An algorithm is a plain object
# It names its loss component, its references (asked once for every sample) and how streams
# land on a group. The teacher here is an engine in this process.

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


# %% [markdown]
# A large teacher sits on a vLLM server instead; the config that says so is prl's own, with
# the same references and streams. `recipes/opd.py` runs it over HTTP.

# %%
remote = OPD(teacher=FrozenModel(name="teacher", base_url="http://localhost:8001/v1"))
assert remote.component == Distil.component and remote.references.keys() == Distil.references.keys()

# %% [markdown]
# ## 4. What the teacher says
# Predict before you run: on which tokens of a wrong answer is the teacher most surprised?

# %%
runner = Runner(student, env, algorithm=Distil(), group_size=4, batch_size=128, sampling=sampling,
                optimizer=AdamW(lr=3e-3, betas=(0.9, 0.95)))  # fmt: skip
groups = runner.score(runner.rollout())
text = viz.token_text(student.tokenizer)
group = next(g for g in groups if 0 < g.rewards.mean() < 1)
viz.token_html(group, text)

# %% [markdown]
# Choose `ref_logprobs` above the text. Here is the same as numbers: for each rollout the
# sum of log teacher - log student over its own tokens.

# %%
for trace, sample in zip(group.traces, group.samples, strict=True):
    gap = (sample.ref_logprobs - sample.inference_logprobs)[sample.loss_mask]
    print(f"reward {trace.reward:.2f}  {trace.messages[-1]['content']!r:10} {gap.sum():8.2f} nats")

# %% [markdown]
# No advantages, no rl weights: each sampled token is a member of `ref_kl`.

# %%
assert all(s.advantages is None and (s.ref_kl_weights == s.loss_mask).all() for g in groups for s in g.samples)

# %% [markdown]
# ## 5. The loss, by hand
# The signal log teacher - log student stands where the advantage stands in a policy
# gradient: loss = -signal x ratio, and the ratio is 1 on the policy that sampled.

# %%
batch = runner.pack(groups)
loss = runner.losses(batch)["ipo"]["ref_kl"]
rows = batch.rows[0]
members = rows.ref_kl_weights != 0
by_hand = -(rows.ref_logprobs - rows.inference_logprobs)[members]
torch.testing.assert_close(
    loss.per_token[: len(rows.token_ids), : members.shape[1]][members], by_hand, atol=1e-3, rtol=0
)
print(f"mean loss {by_hand.mean():.3f}: an estimate of the reverse KL, in nats per token")

# %% [markdown]
# ## 6. Catch up

# %%
before = runner.evaluate("test", 256)["exact"].mean()

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a notebook without widgets gets a plain progress bar
    runner.fit(30)

# %%
viz.history(runner.history)

# %%
after = runner.evaluate("test", 256)["exact"].mean()
kl = [r.terms["ref_kl"] for r in runner.history]
print(f"student {before:.0%} -> {after:.0%}, teacher {teacher_accuracy:.0%}")
print(f"reverse KL {sum(kl[:5]) / 5:.2f} -> {sum(kl[-5:]) / 5:.2f} nats per token")
assert after > before and sum(kl[-5:]) < sum(kl[:5])

# %% [markdown]
# ## Try this
# - Swap teacher and student. What does the student unlearn, and how fast?
# - Give the wrong answers of section 4 to `prl.losses.ref_kl` with `max_drop=0.01`.
#   Which tokens are dropped after some updates on one batch, and why none here?
#
# Next: 203 looks at the log-probabilities themselves, and at samplers that are not the trainer.
