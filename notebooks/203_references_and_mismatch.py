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
# # 203 Two kinds of log-probabilities: of references, and of the sampler
# The loss compares the trainer with whoever sampled, and may listen to a reference. You
# will see how far a sampler may be from the trainer, what each trust region makes of it,
# what score centering records, and what the policy says once it has seen the answer.
#
# Needs: CPU, no downloads, `prl[notebook]`. Runs in about a minute.

# %%
import itertools
import random

import matplotlib.pyplot as plt
import torch

import prl

prl.check_types()

# %%
from prl import IPO, AdamW, IcePop, Runner, Sampling, models, viz
from prl.algorithms import OPSD
from prl.engines import MismatchedEngine, TorchEngine
from prl.types import Task, supervised

torch.set_num_threads(min(2, torch.get_num_threads()))  # a small model gains nothing from more

# %% [markdown]
# ## 1. A small model that half knows its task


# %%
class NextLetters:
    """Say the letter after each of three letters: cat -> dbu."""

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


# %%
def answer_sample(policy, task):
    prompt = policy.renderer.render_ids([{"role": "user", "content": task.prompt}], add_generation_prompt=True)
    answer = policy.tokenizer.encode(task.answer) + policy.renderer.get_stop_token_ids()
    return supervised(prompt, answer, id=task.key)


policy = models.tiny(hidden=64, layers=2, seed=0)
school = Runner(policy, env, optimizer=AdamW(lr=4e-3, betas=(0.9, 0.95)))
words, lesson, loss = env.tasks("train"), 0, 9.0
while loss > 0.15:
    loss = school.update(school.pack([answer_sample(policy, t) for t in words[lesson : lesson + 32]])).loss
    lesson = (lesson + 32) % (len(words) - 32)
print(f"cross-entropy of the answers: {loss:.3f} nats per byte")

# %% [markdown]
# ## 2. The same weights, two numbers
# The engine writes down log mu of each token that it samples; the trainer computes log pi
# in a pass of its own. With the same weights they should be one number.


# %%
def rollouts(engine, loss=None):
    runner = Runner(policy, env, engine=engine, loss=loss, group_size=8, batch_size=64, sampling=Sampling(max_tokens=6))
    groups = runner.score(runner.rollout())
    return runner, groups, runner.pack([sample for group in groups for sample in group.samples])


def log_ratios(runner, batch):
    out = runner.losses(batch, IPO())["ipo"]["rl"]
    width = out.kept.shape[1]
    weights = torch.cat([torch.nn.functional.pad(r.rl_weights, (0, width - r.rl_weights.shape[1])) for r in batch.rows])
    return out.metrics["mismatch_kl"][weights != 0], weights != 0


# %%
runner, groups, batch = rollouts(TorchEngine(policy.module))
honest, _ = log_ratios(runner, batch)
print(f"mismatch KL of the embedded engine: {honest.mean():.1e} nats per token")
assert honest.mean() < 1e-9

# %% [markdown]
# ## 3. A sampler that differs on purpose
# `MismatchedEngine` samples with rounded weights, old weights or a wandering temperature,
# and records what it sampled, as a real engine would. Predict: from 8 to 4 bits, by which
# factor does the mismatch grow?

# %%
kinds = {f"{bits} bits": dict(bits=bits) for bits in (8, 6, 4)}
kinds |= {"temperature off by 20 %": dict(temperature_jitter=0.2)}
runs = {name: rollouts(MismatchedEngine(policy.module, **kind)) for name, kind in kinds.items()}
mismatch = {name: log_ratios(runner, batch)[0].mean().item() for name, (runner, _, batch) in runs.items()}
figure, axes = plt.subplots(figsize=(6, 2.5))
axes.barh(list(mismatch), list(mismatch.values()))
axes.set(xscale="log", xlabel="mismatch KL, nats per token")
plt.close(figure)
figure

# %%
assert mismatch["8 bits"] < mismatch["6 bits"] < mismatch["4 bits"]

# %% [markdown]
# ## 4. What the trust regions keep
# IPO looks at how far the probability moved, IcePop at the ratio. On the same rollouts:

# %%
for name, (runner, _, batch) in runs.items():
    members = log_ratios(runner, batch)[1]
    out = runner.losses(batch, {"ipo": IPO(), "icepop": IcePop()})
    kept = {loss: out[loss]["rl"].kept[members].float().mean() for loss in out}
    print(f"{name:24} IPO keeps {kept['ipo']:.1%}, IcePop {kept['icepop']:.1%}")

# %% [markdown]
# ## 5. Score centering
# With `IcePop(score_centering=True)` the Runner asks the engine for the likeliest tokens of
# each distribution. The loss then knows what the rejected tokens would have done; the band
# here is narrow, so that some are rejected.

# %%
centred = IcePop(ratio_low=0.9, ratio_high=1.1, score_centering=True, score_centering_topk=16)
runner, groups, batch = rollouts(MismatchedEngine(policy.module, bits=4), centred)
sample = batch.samples[0]
token = int(sample.loss_mask.argmax())
for i in range(4):
    likely = policy.tokenizer.decode([int(sample.topk.ids[token, i])])
    print(f"{likely!r:8} {sample.topk.logprobs[token, i]:7.3f} nats")

# %%
members = log_ratios(runner, batch)[1]
metrics = runner.losses(batch)["icepop"]["rl"].metrics
mass, moved = (metrics[f"score_centering/{name}"][members] for name in ("head_mass", "logit_correction_l1"))
print(f"16 of 512 tokens hold {mass.mean():.1%} of the sampler's mass; the correction moves {moved.mean():.3f}")
assert 0.5 < mass.mean() <= 1 and moved.mean() > 0

# %% [markdown]
# ## 6. A reference that is the policy itself
# OPSD shows the policy the answer first, then asks how likely it finds what it wrote. Blue
# tokens got likelier with the answer in view. A model that never saw a demonstration does
# not know what to do with one; `recipes/opsd.py` teaches it.

# %%
runner = Runner(policy, env, algorithm=OPSD(demo_key="answer", template="{demonstration}"), group_size=4, batch_size=32,
                sampling=Sampling(max_tokens=6))  # fmt: skip
groups = runner.score(runner.rollout())
viz.token_html(groups[0], viz.token_text(policy.tokenizer))

# %% [markdown]
# The reference scored the hint and the sample in one sequence, and the hint's entries were
# sliced off. By hand:

# %%
group, sample = groups[0], groups[0].samples[0]
hint = policy.renderer.render([{"role": "system", "content": group.task.answer}]).token_ids
ids = torch.tensor([[*hint, *sample.token_ids.tolist()]])
with torch.no_grad():
    logprobs = policy.module(ids).logits.log_softmax(-1)[0, :-1].gather(-1, ids[0, 1:, None])[:, 0]
by_hand = logprobs[-len(sample) :][torch.tensor(sample.loss_mask)]
torch.testing.assert_close(torch.tensor(sample.ref_logprobs[sample.loss_mask]), by_hand, atol=1e-4, rtol=0)

# %% [markdown]
# ## Try this
# - `MismatchedEngine(policy.module, lag=3)`: train with `fit` and watch `rl/mismatch_kl`.
# - Which `score_centering_topk` holds 99 % of the mass at temperature 1.5?
#
# Next: 301 trains several environments at once, each with its own algorithm.
