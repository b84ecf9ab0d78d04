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
# # 103 Score centering: what a constant reward teaches
# Pay every answer the same. There is nothing to learn, so nothing should change. It does, when
# the engine that samples differs a little from the policy that trains. You will watch that
# drift carry a policy away, see where a baseline hides it and where it does not, take it out,
# and measure how well the cheap form of the cure works on 1,000 tokens.
#
# Needs: CPU, no downloads, `prl[notebook]`. Runs in about 15 seconds.

# %%
import polars as pl
import torch

import prl

prl.check_types()  # shapes are checked from here on; call it before other imports of prl

# %%
from prl import oracle
from prl.advantages import group_norm
from prl.losses import icepop, icepop_centered, ipo
from prl.viz import palette
from prl.viz.picture import WIDTH, Picture, tidy

PLAIN, ICEPOP, CENTRED = palette.MUTED, palette.NEGATIVE[4], palette.COMPONENTS["ce"]


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


# %% [markdown]
# ## 1. A reward that says nothing
# A policy gradient adds A grad log p(token) for each sampled token. If A is 1 for all of them,
# the average over the policy's own samples is 0: sum_v p_v grad log p_v is the gradient of a
# total probability, and that is always 1. The average over samples of another policy q is not.
# In the logits it is q - p: the policy is pulled towards its sampler.
#
# `oracle.drift` computes this average over every token that could be sampled.

# %%
p, q = tensor([0.4, 0.4, 0.2]), tensor([0.5, 0.3, 0.2])
drift = oracle.drift(p.log(), q.log())
torch.testing.assert_close(drift, q - p)
assert oracle.drift(p.log(), p.log()).abs().max() < 1e-15
drift.round(decimals=9)

# %% [markdown]
# ## 2. A small lean, two thousand steps
# Three actions and a policy that starts uniform. The sampler is the policy itself with
# (0.3, 0, -0.3) added to its logits, at every step anew: it follows the policy, as an engine
# does whose weights are refreshed but whose arithmetic differs. The credit is always 1 and the
# learning rate 0.05.
#
# Predict before you run: does the policy come to rest near the sampler, that is, a little to
# the left of uniform?


# %%
def walk(lean, weight, steps=2_000, rate=0.05):
    """Policies [steps + 1, actions] under a constant credit of 1; weight(p, q) multiplies each sampled token."""
    logits, path = torch.zeros(len(lean), dtype=torch.float64), []
    for _ in range(steps + 1):
        p, q = logits.softmax(-1), (logits + lean).softmax(-1)
        path.append(p)
        pull = q * weight(p, q)
        logits = logits + rate * (pull - pull.sum() * p)  # sum_v q_v w_v grad log p_v
    return torch.stack(path)


# %%
small = tensor([0.3, 0, -0.3])
away = walk(small, lambda p, q: torch.ones_like(p))
pl.DataFrame(
    {"step": (steps := [0, 100, 500, 2_000])} | {f"p of action {v}": away[steps, v].tolist() for v in range(3)}
)

# %%
torch.testing.assert_close(away[-1], tensor([0.976, 0.015, 0.009]), atol=5e-4, rtol=0)
start = torch.zeros(3, dtype=torch.float64)
torch.testing.assert_close(away[1], (0.05 * oracle.drift(start, start + small)).softmax(-1))

# %% [markdown]
# It does not come to rest. The sampler keeps its lean, so there is always somewhere further to
# go, and a policy that was uniform ends at 97.6 percent for one action. No reward asked for it.
#
# Importance weights p/q would undo it: the pull is then exactly 0. A trust region brings a part
# of it back. IcePop drops ratios outside [0.2, 5]. With the small lean all ratios are inside.
# With a lean of (2, 0, -2) the last action has the ratio 21.
#
# Predict before you run: where does IcePop drift to, towards the sampler's favourite?


# %%
def band(p, q):
    """IcePop's weight."""
    ratio = p / q
    return torch.where((ratio >= 0.2) & (ratio <= 5), ratio, 0.0)


large = tensor([2.0, 0, -2])
paths = {
    "lean 0.3": {"no weights": away, "IcePop": walk(small, band)},
    "lean 2": {"no weights": walk(large, lambda p, q: torch.ones_like(p)), "IcePop": walk(large, band)},
}
torch.testing.assert_close(paths["lean 2"]["IcePop"][1], (0.05 * oracle.drift(start, large, icepop)).softmax(-1))

# %% [markdown]
# The picture shows every policy over three actions as a point of a triangle: in a corner one
# action is certain, in the middle all are equal.

# %%
CORNERS = tensor([[0, 0], [1, 0], [0.5, 0.75**0.5]])


def draw_triangle(ax, title):
    ax.plot(*CORNERS[[0, 1, 2, 0]].T, color=palette.INK, linewidth=0.8)
    for v, (x, y) in enumerate([(-0.03, -0.07), (1.03, -0.07), (0.5, 0.9)]):
        ax.text(x, y, f"action {v}", ha="center", va="center")
    ax.set(title=title, aspect="equal", xlim=(-0.12, 1.12), ylim=(-0.12, 0.95))
    ax.axis("off")


# %%
picture = Picture(figsize=(WIDTH, 4.0))
for ax, (title, lines) in zip(picture.subplots(1, 2), paths.items(), strict=True):
    draw_triangle(ax, title)
    for (name, path), colour, mark in zip(lines.items(), (PLAIN, ICEPOP), "os", strict=True):
        at = path @ CORNERS
        ax.plot(*at.T, color=colour, linewidth=1.6)
        ax.plot(*at[[100, 500, 2000]].T, mark, color=colour, markersize=5, label=name)
    ax.plot(*(path[0] @ CORNERS), "D", color=CENTRED, markersize=8, label="start, and centred")
keys, names = ax.get_legend_handles_labels()
picture.legend(keys, names, loc="outside lower center", ncols=3, frameon=False)
picture.suptitle("2,000 steps with a constant credit; marks at steps 100, 500 and 2,000", fontsize=10)
picture

# %% [markdown]
# IcePop stays put while it drops nothing. With the large lean it moves, and not towards the
# sampler's favourite: it walks away from the action that it refuses to look at, straight to the
# middle of the opposite side. What is never trained on, starves.

# %%
end = paths["lean 2"]["IcePop"][-1]
assert (paths["lean 0.3"]["IcePop"] - 1 / 3).abs().max() < 1e-12
assert end[2] < 0.01 and abs(end[0] - end[1]) < 1e-9

# %% [markdown]
# ## 3. The cure
# Subtract the average before it can act. With w the weight of the loss, each token's update
# becomes A (w_a grad log p_a - sum_v q_v w_v grad log p_v): the second term is what a constant
# credit would teach. `icepop_centered` does this for IcePop. It needs, beside the three usual
# streams, log-probabilities of the sampler's likeliest tokens under both policies. Here these
# are all tokens.


# %%
def centred(trainer_logprobs, inference_logprobs, advantages, topk_trainer_logprobs, topk_inference_logprobs):
    """The plain policy gradient without its drift: weight 1 for every token."""
    mean = (topk_inference_logprobs.exp() * topk_trainer_logprobs).sum(-1)
    return -advantages * (trainer_logprobs - mean)


for policy in away[[0, 100, 2_000]]:
    assert oracle.drift(policy.log(), policy.log() + small, centred, head=True).abs().max() < 1e-15
    assert oracle.drift(policy.log(), policy.log() + large, icepop_centered, head=True).abs().max() < 1e-15

# %% [markdown]
# The drift is 0 wherever the policy stands, so a centred policy never leaves the green diamond.
#
# ## 4. Where the drift hides
# "But we subtract the group's mean, so a constant reward gives no credit at all." True, and for
# an answer of one token it settles the matter: the update is then (1 - 1/G) Cov_q(r, grad log p),
# pure signal.

# %%
bandit, sampler, rewards = tensor([0.2, -0.1, 0.4]), tensor([0.9, -0.5, 0.1]), tensor([1.0, 0, 3])
q, scores = sampler.softmax(-1), torch.eye(3, dtype=torch.float64) - bandit.softmax(-1)
covariance = (q * (rewards - q @ rewards)) @ scores
for group in (2, 3, 5):
    update = oracle.expected_update(bandit, rewards, group_norm, group=group, sampler=sampler)
    torch.testing.assert_close(update, (1 - 1 / group) * covariance)

# %% [markdown]
# Now two tokens. The first decides the reward: 0 pays, 1 does not. The second has nothing to do
# with it. The policy is even on the first token and leans by 0.3 to token 0 on the second; the
# sampler leans by 0.8 more there. Groups of two, credit r minus the mean.
#
# Predict before you run: the second token earns nothing. Does its policy move?

# %%
tree = tensor([[0, 0], [0.3, 0], [0.3, 0]])  # logits of the first token; of the second after 0; after 1
leaning = tree + tensor([[0, 0], [0.8, 0], [0.8, 0]])
paid = lambda tokens: tokens[:, 0] == 0  # noqa: E731
updates = {
    "uncentred": oracle.expected_update(tree, paid, group_norm, group=2, sampler=leaning),
    "centred": oracle.expected_update(tree, paid, group_norm, group=2, sampler=leaning, loss=centred, head=True),
}
rows = ("first token", "second token, after 0", "second token, after 1")
pl.DataFrame([
    {"update": name, "of the logits": row, "token 0": u[0], "token 1": u[1]}
    for name, update in updates.items()
    for row, u in zip(rows, update.round(decimals=9).tolist(), strict=True)
])  # fmt: skip

# %%
picture = Picture(figsize=(WIDTH, 3.0))
axes = picture.subplots(1, 3, sharey=True)
for i, (ax, title) in enumerate(zip(axes, rows, strict=True)):
    for j, (name, colour) in enumerate((("uncentred", PLAIN), ("centred", CENTRED))):
        ax.bar(torch.arange(2) + 0.36 * (j - 0.5), updates[name][i], 0.34, color=colour, label=name)
    ax.axhline(0, color=palette.INK, linewidth=0.8)
    ax.set(title=title, xticks=[0, 1], xticklabels=["token 0", "token 1"])
    tidy(ax)
axes[0].set(ylabel="expected update of the logit\n(learning rate 1)")
axes[0].legend(frameon=False)
picture

# %% [markdown]
# It moves, by 0.022, and in opposite directions under the two prefixes. The group's mean makes
# the credit 0 on average over whole answers. It does not make it 0 given the first token: after
# a 0 the credit is 1/4 on average, after a 1 it is -1/4. So the second token sees a constant
# credit twice, once of each sign: after a good start the policy is pulled towards its sampler,
# after a bad start away from it. The two cancel in their sum, so a test with one shared logit,
# or with one token, cannot see it.

# %%
second = updates["uncentred"][1:]
torch.testing.assert_close(second, 0.021977 * tensor([[1, -1], [-1, 1]]), atol=5e-7, rtol=0)
gap = leaning.softmax(-1)[1] - tree.softmax(-1)[1]
torch.testing.assert_close(second[0], gap * 1 / 4 * 1 / 2)  # a credit of 1/4, on half of the answers
assert second.sum(0).abs().max() < 1e-15
assert updates["centred"][1:].abs().max() < 1e-15
torch.testing.assert_close(updates["centred"][0], tensor([1 / 8, -1 / 8]))  # the first token still learns

# %% [markdown]
# ## 5. A rejected token is corrected too
# IcePop gives a token outside its band no gradient. `icepop_centered` still subtracts the
# average from it. That looks like a slip; it is what makes the sum come out. Three actions, and
# half of what the sampler draws is outside the band.
#
# Predict before you run: what is left of the drift if only kept tokens are corrected?


# %%
def corrects_kept_only(t, i, a, topk_trainer_logprobs, topk_inference_logprobs):
    full = icepop_centered(t, i, a, topk_trainer_logprobs, topk_inference_logprobs)
    return torch.where(full.kept, full.per_token, 0.0)


p, q = tensor([0.05, 0.35, 0.6]), tensor([0.5, 0.3, 0.2])  # ratios 0.1, 1.17, 3
drifts = {
    "IcePop": oracle.drift(p.log(), q.log(), icepop),
    "centred on kept tokens only": oracle.drift(p.log(), q.log(), corrects_kept_only, head=True),
    "centred": oracle.drift(p.log(), q.log(), icepop_centered, head=True),
}
table = pl.DataFrame({"loss": [*drifts]} | {f"action {v}": [d[v].item() for d in drifts.values()] for v in range(3)})
table.with_columns(pl.col(pl.Float64).round(12))

# %% [markdown]
# Half of it is left, the share of the rejected draws. And the size of the drift follows from one
# number: with P the trainer's probability of all accepted tokens, its L1 norm over the logits is
# 2 P (1 - P). The loss reports it as `score_centering/logit_correction_l1`. It is 0 when nothing
# is rejected and when everything is, and at most one half.

# %%
torch.testing.assert_close(drifts["centred on kept tokens only"], drifts["IcePop"] / 2)
assert drifts["centred"].abs().max() < 1e-15
sampled = 0  # the rejected action
streams = p.log()[[sampled]], q.log()[[sampled]], tensor([1.0])
out = icepop_centered(*streams, p.log()[None], q.log()[None])
accepted = 0.35 + 0.6
assert not out.kept and icepop(*streams).per_token == 0
torch.testing.assert_close(out.metrics["score_centering/logit_correction_l1"], tensor([2 * accepted * (1 - accepted)]))
torch.testing.assert_close(drifts["IcePop"].abs().sum(), tensor(2 * accepted * (1 - accepted)))

# %% [markdown]
# ## 6. A vocabulary is too long
# An engine does not send 150,000 log-probabilities per token. It sends the k that it finds most
# likely: the head. For the rest, the loss assumes that the sampler's tail is the trainer's tail
# times one number, `tail_scale`. All tail tokens then have one ratio, 1/tail_scale, and are
# accepted or rejected together.
#
# The sum over the whole vocabulary also becomes a sum over the head. Since
# sum_v p_v grad log p_v = 0, whatever holds for every tail token can be written with the head's
# alone: the weights are p_v (1[v accepted] - 1[tail accepted]).


# %%
def from_head(logits, sampler, k):
    """The centering term's gradient in the logits as the loss takes it from a head of k, and the metrics."""
    z = logits.clone().requires_grad_()
    head = sampler.topk(k).indices
    p, q = z.log_softmax(-1), sampler.log_softmax(-1)
    streams = p[head[:1]], q[head[:1]], torch.ones(1, dtype=torch.float64)
    out = icepop_centered(*streams, p[head][None], q[head][None])
    term = out.per_token - icepop(*streams).per_token
    return torch.autograd.grad(term.sum(), z)[0], {name: value.item() for name, value in out.metrics.items()}


# %%
def over_all(p, q):
    """sum_v q_v w_v grad log p_v in the logits, over the whole vocabulary."""
    weights = q * band(p, q)
    return weights - weights.sum() * p


def tail_of(q, k):
    return torch.ones(len(q), dtype=torch.bool).index_fill(0, q.topk(k).indices, False)


def modelled(p, q, k):
    """q with the tail that the loss assumes: the trainer's, times one number."""
    tail = tail_of(q, k)
    return torch.where(tail, p * q[tail].sum() / p[tail].sum(), q)


# %% [markdown]
# A vocabulary of 1,000 with a random mismatch: every logit of the sampler is off by noise of
# 1 nat. The two forms agree to the last digits for every k.

# %%
generator = torch.Generator().manual_seed(0)
logits, noise = torch.randn(2, 1_000, generator=generator, dtype=torch.float64)
logits = 2.5 * logits
p, q = logits.softmax(-1), (logits + noise).softmax(-1)
for k in (1, 4, 32, 128, 512):
    gradient, _ = from_head(logits, logits + noise, k)
    assert (gradient - over_all(p, modelled(p, q, k))).abs().max() < 1e-15

# %% [markdown]
# The head costs k terms instead of 1,000, or of 150,000. How good is it? What is left of the
# drift is the difference between the correction from the head and that from the true sampler.
#
# Predict before you run: at k = 128 the head holds nine tenths of the sampler's probability.
# Which share of the drift does it take out?

# %%
sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768]
left, metrics = {}, {}
for spread in (0.7, 1.0, 1.5):
    sampler = logits + spread * noise
    found, true = [from_head(logits, sampler, k) for k in sizes], over_all(p, sampler.softmax(-1))
    left[spread] = [((true - gradient).abs().sum() / true.abs().sum()).item() for gradient, _ in found]
    metrics[spread] = [{name.removeprefix("score_centering/"): m[name] for name in m} for _, m in found]
at = sizes.index(128)
pl.DataFrame([{"noise (nats)": x, "drift left at k = 128": left[x][at]} | metrics[x][at] for x in left])

# %%
picture = Picture(figsize=(WIDTH, 3.4))
drift_ax, mass_ax = picture.subplots(1, 2)
for spread, style in zip(left, (":", "-", "--"), strict=True):
    drift_ax.plot(
        sizes, [100 * x for x in left[spread]], style, color=ICEPOP, label=f"noise {spread:g} nats", marker="."
    )
    mass_ax.plot(sizes, [m["tail_scale"] for m in metrics[spread]], style, color=palette.COMPONENTS["rl"], marker=".")
mass_ax.plot(sizes, [m["head_mass"] for m in metrics[1.0]], color=palette.INK, label="head mass, noise 1 nat")
mass_ax.plot([], [], color=palette.COMPONENTS["rl"], marker=".", label="tail scale, styles as left")
drift_ax.set(ylabel="drift left (percent of uncentred)"), mass_ax.set(ylabel="no unit", ylim=(0, 1.05))
for ax in (drift_ax, mass_ax):
    ax.set(xscale="log", xlabel="k, tokens in the head")
    ax.legend(frameon=False, fontsize=8), tidy(ax)
picture

# %% [markdown]
# At k = 128 the head holds 92 percent of the sampler's mass, and half of the drift is still
# there. The head is chosen by the sampler, and what IcePop rejects above its band are the
# tokens that the sampler thinks unlikely: they are the last to enter. Head mass is the wrong
# thing to look at.
#
# `tail_scale` says more. It falls as k grows, although the noise has no preference: among the
# sampler's favourites are those that it overrates, so what is left over is underrated. As long
# as 1/tail_scale is inside the band, the whole tail counts as accepted. The tokens of the tail
# that are not accepted in truth are the error, and it has the form of the drift itself: with
# P_B the trainer's probability of the tail tokens judged wrongly, it is 2 P_B (1 - P_B). Below
# 0.2 the whole tail counts as rejected, as it does for the largest noise from k = 256 on.

# %%
assert metrics[1.0][at]["head_mass"] > 0.92 and min(x[at] for x in left.values()) > 0.5
assert metrics[1.5][at]["tail_scale"] > 0.2 > metrics[1.5][at + 1]["tail_scale"]
assert metrics[1.0][0]["tail_scale"] > 0.8 and metrics[1.0][at]["tail_scale"] < 0.5
wrong = tail_of(q, 128) & (band(p, q) == 0)  # the model takes the whole tail for accepted
error = over_all(p, modelled(p, q, 128)) - over_all(p, q)
torch.testing.assert_close(error.abs().sum(), 2 * p[wrong].sum() * (1 - p[wrong].sum()))
print(f"{wrong.sum()} of 872 tail tokens are judged wrongly; P_B = {p[wrong].sum():.3f}")

# %% [markdown]
# A language model is often more peaked than this vocabulary and its engine closer, so the numbers
# will differ. The way to know is to log `head_mass` and `tail_scale`, and to keep in mind what
# they cannot see: which tail tokens are judged wrongly.
#
# ## 7. What it is not
# Centering is no full off-policy correction. It takes out what a constant credit would teach.
# The signal itself still comes from the sampler's draws: what the loss drops, it does not learn
# from, centred or not.
#
# Five actions; the last pays most, and its ratio of 150 is outside the band. The first pays half
# as much and is the sampler's favourite. The credit is the reward itself, without a baseline.

# %%
p, q = tensor([0.35, 0.3, 0.1, 0.1, 0.15]), tensor([0.6, 0.3, 0.08, 0.019, 0.001])
rewards = tensor([1.0, 0, 0, 0, 2])
goal = oracle.gradient_of(p.log(), lambda d: d @ rewards)
signal = {"gradient of the mean reward": goal}
for name, loss, head in (("IPO", ipo, False), ("IcePop", icepop, False), ("IcePop centred", icepop_centered, True)):
    given = dict(group=1, sampler=q.log(), loss=loss, head=head)
    signal[name] = oracle.expected_update(p.log(), rewards, lambda r: r, **given)
rows = {f"action {v}": [u[v].item() for u in signal.values()] for v in range(5)}
cosine = [torch.cosine_similarity(u, goal, dim=0).item() for u in signal.values()]
pl.DataFrame({"expected update": [*signal], **rows, "cosine with the first row": cosine}).with_columns(
    pl.col(pl.Float64).round(4)
)

# %% [markdown]
# Uncentred IcePop pushes the best action down. Centred it pushes it up, at a thirteenth of the
# rate that the reward would justify, and still prefers the sampler's favourite. IPO at 0.3 drops
# none of these tokens, and its update is the true gradient.

# %%
best = {name: update[4].item() for name, update in signal.items()}
assert best["IcePop"] < 0 < best["IcePop centred"] < best["gradient of the mean reward"] / 13
torch.testing.assert_close(signal["IPO"], goal)
assert signal["IcePop centred"].argmax() == 0 and goal.argmax() == 4

# %% [markdown]
# What is known about its use? The paper (arXiv:2609.20807) reports that most of the instability
# under a mismatched sampler is drift, and that centering alone matches or beats importance
# weights when the sampler is quantised. There is a null replication too: a study report of the
# Marin project, 12 paired seeds of 40 updates against TIS with a cap of 1.05, found a difference
# in accuracy of +0.06 points, joint 95 percent interval -1.23 to +1.34. In its runs no ratio was
# ever clipped. So measure first: where nothing is rejected, IcePop has nothing to centre, and
# `logit_correction_l1` is 0. Read it together with `tail_scale`, since it is what the head sees.
#
# ## Try this
# - Give section 2 a lean of (0.3, 0, -0.3) and the weight `lambda p, q: (p / q).clamp(max=1.1)`.
# - In section 6, choose the head by the trainer's probabilities instead. What happens to the
#   drift left at k = 128, and why can an engine not do this?
# - In section 4, replace `group_norm` by `lambda r: r - 0.5`. Which numbers change?
#
# Next: 105, the oracle behind all of this and how to use it on your own estimator.
