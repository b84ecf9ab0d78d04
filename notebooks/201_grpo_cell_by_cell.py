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
# # 201 GRPO, cell by cell
# You will take one training step apart: tasks, rollouts, the credit that every token
# got, the loss of every token, the update. Then you put your own advantage and your own
# loss in, and let it run.
#
# Needs: CPU, no downloads, `prl[envs,notebook]`. Runs in about a minute.

# %%
import warnings

import torch

import prl

prl.check_types()  # shapes are checked from here on; call it before other imports of prl

# %%
from prl import AdamW, Runner, Sampling, frames, losses, models, viz
from prl.envs import ReasoningGym
from prl.types import TokenLoss, supervised

torch.set_num_threads(min(2, torch.get_num_threads()))  # a small model gains nothing from more

# %% [markdown]
# ## 1. Tasks
# Any reasoning-gym task is an environment: its questions are the tasks, its verifier is
# the reward. Here: spell a word backward. The verifier pays for each letter in its place.

# %%
env = ReasoningGym("spell_backward", size=5_000, min_word_len=3, max_word_len=4)
train, test = env.tasks("train"), env.tasks("test")
print(f"{len(train)} training tasks, {len(test)} held out; the first: {train[0].prompt!r} -> {train[0].answer!r}")

# %% [markdown]
# No held-out question is in the training split: tasks go to a split by a hash of their text.

# %%
assert not {task.prompt for task in train} & {task.prompt for task in test}

# %% [markdown]
# ## 2. A model
# A 0.66M-parameter Qwen3 from scratch that reads bytes. A random model earns nothing, so
# it first sees 80 batches of answers: enough to write letters and to stop, not enough to
# spell.


# %%
def answer_sample(policy, task):
    prompt = policy.renderer.render_ids([{"role": "user", "content": task.prompt}], add_generation_prompt=True)
    answer = policy.tokenizer.encode(task.answer) + policy.renderer.get_stop_token_ids()
    return supervised(prompt, answer, id=task.key)


# %%
policy = models.tiny(seed=0)
warm = Runner(policy, env, optimizer=AdamW(lr=2e-3, betas=(0.9, 0.95)))
for start in range(0, 80 * 16, 16):
    report = warm.update(warm.pack([answer_sample(policy, task) for task in train[start : start + 16]]))
print(f"cross-entropy of the answers: {report.loss:.2f} nats per byte")

# %% [markdown]
# ## 3. The Runner and its first rollout
# Stages read, `update` commits: you may run any cell below as often as you like.

# %%
runner = Runner(
    policy, env, group_size=8, batch_size=64, optimizer=AdamW(lr=1e-3), sampling=Sampling(max_tokens=6)
)  # fmt: skip
groups = runner.rollout()
frames.groups(groups)

# %% [markdown]
# One group: eight answers to one question.

# %%
group = max(groups, key=lambda g: g.rewards.std().item())
print(group.task.prompt)
for trace in group.traces:
    print(f"{trace.reward:.2f}  {trace.messages[-1]['content']!r}")

# %% [markdown]
# ## 4. Credit
# GRPO pays each rollout its reward minus the group's mean. Predict before you run: which
# of the rows above will be blue, which orange, and what is the sum over the group?

# %%
scored = runner.score(groups)
group = next(g for g in scored if g.id == group.id)
text = viz.token_text(policy.tokenizer)
viz.group_advantages(group, text)

# %%
credit = [sample.advantages.max() + sample.advantages.min() for sample in group.samples]
assert abs(sum(credit)) < 1e-5  # one number per rollout, zero-mean over the group

# %% [markdown]
# The same group as text. Hover over a token, or tab to it, for every stream; choose another
# stream above it.

# %%
viz.token_html(group, text)

# %% [markdown]
# ## 5. Your own advantage, in the cell
# A function of one group's rewards. This one rewards only the best rollout of the group.

# %%
best_only = runner.score(groups, advantage=lambda r: (r == r.max()).float() - (r == r.max()).float().mean())
viz.group_advantages(next(g for g in best_only if g.id == group.id), text)

# %% [markdown]
# ## 6. Pack
# Samples become rows. Neighbours that start alike share their first tokens, tokens without
# credit leave, and each component of the loss gets its own count.

# %%
batch = runner.pack(runner.admit(scored))
cells = sum(rows.token_ids.numel() for rows in batch.rows)
print(f"{len(batch.samples)} samples of {sum(map(len, batch.samples))} tokens in {cells} cells")
{name: count.item() for name, count in batch.counts.items()}

# %%
assert batch.counts["rl"] == sum((sample.advantages != 0).sum() for sample in batch.samples)

# %% [markdown]
# ## 7. Losses, without updating
# `losses` evaluates the batch and changes nothing. The weights are those that sampled, so
# nothing has moved and everything is kept.

# %%
before = runner.losses(batch)["ipo"]["rl"]
trained = batch.rows[0].trained
print(f"kept {before.kept[trained].float().mean():.0%}, loss {before.per_token.sum() / batch.counts['rl']:.4f}")
assert before.kept[trained].all()

# %% [markdown]
# ## 8. Your own loss, in the cell
# Three streams in, one unreduced loss per token out. Weights and 1/N are applied after it.


# %%
def reinforce(trainer_logprobs, inference_logprobs, advantages):
    per_token = -advantages * trainer_logprobs
    return TokenLoss(per_token, torch.ones_like(per_token, dtype=torch.bool), {})


# %%
both = runner.losses(batch, {"ipo": losses.ipo, "reinforce": reinforce})
{name: loss["rl"].per_token[trained].abs().mean().item() for name, loss in both.items()}

# %% [markdown]
# ## 9. Update
# The only stage that changes anything. Run the cell twice: the batch is committed once.

# %%
report = runner.update(batch)
assert runner.update(batch) is report
print(f"step {report.step}: loss {report.loss:.4f}, gradient norm {report.grad_norm:.3f}, reward {report.reward:.3f}")

# %% [markdown]
# After the step the policy has moved away from the one that sampled: the mismatch KL of
# the same batch is no longer zero.

# %%
after = runner.losses(batch)["ipo"]["rl"]
moved = after.metrics["mismatch_kl"][trained].mean().item()
print(f"mismatch KL {moved:.2e} nats per token, kept {after.kept[trained].float().mean():.0%}")
assert moved > before.metrics["mismatch_kl"][trained].mean().item()

# %% [markdown]
# ## 10. Let it run
# `fit` repeats collect, pack, update. Interrupt it whenever you like; it stops at a whole step.

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a notebook without widgets gets a plain progress bar
    reports = runner.fit(15)

# %%
viz.history(runner.history)

# %%
first, last = (sum(r.reward for r in part) / 5 for part in (runner.history[:5], runner.history[-5:]))
print(f"mean reward of the first five steps {first:.3f}, of the last five {last:.3f}")
assert last > first

# %% [markdown]
# ## Try this
# - Set `loss=reinforce` in the Runner. What does `rl/kept` say, and why?
# - Take `group_size=2`: how many groups carry a signal?
# - Replace the environment by another reasoning-gym name, `"letter_counting"` for one.
#
# Next: the recipe `recipes/demo.py` runs this to 0.7 and beyond, with a held-out evaluation.
