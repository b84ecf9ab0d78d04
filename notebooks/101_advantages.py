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
# # 101 From a group's rewards to credit
# A model answers one question several times, and each answer earns a reward. An advantage turns
# these rewards into credit: how much more, or less, likely each answer shall become. You will
# see every estimator of prl on groups small enough to check by hand, which prompts each of them
# pushes hardest, and how the credit reaches the tokens.
#
# Needs: CPU, no downloads, `prl[notebook]`. Runs in about 20 seconds.

# %%
import polars as pl
import torch

import prl

prl.check_types()  # shapes are checked from here on; call it before other imports of prl

# %%
from torch.testing import assert_close

from prl import oracle, viz
from prl.advantages import by_group, group_norm, hierarchical, max_rl, rae, spread
from prl.losses import combine
from prl.oracle import kuhn
from prl.trajectories import interleave, pack
from prl.types import Episode, Group, Step, Task, Trace
from prl.viz import palette
from prl.viz.picture import WIDTH, Picture, tidy

# %% [markdown]
# One drawing serves most sections: a bar per rollout, blue where it is made more likely, orange
# where less. A number stands where the credit changes. Bars have width 1, or the rollout's
# length in tokens.


# %%
def bars(ax, credit, widths=None):
    wide = torch.ones(len(credit)) if widths is None else widths
    left, heights = wide.cumsum(0) - wide, credit.tolist()
    colours = [palette.POSITIVE[3] if a > 0 else palette.NEGATIVE[3] for a in heights]
    ax.bar(left, heights, wide, align="edge", color=colours, edgecolor=palette.PAPER, linewidth=2)
    ax.axhline(0, color=palette.INK, linewidth=0.8)
    for x, a, before in zip(left + wide / 2, heights, [None, *heights], strict=False):
        side = {"xytext": (0, 2), "va": "bottom"} if a >= 0 else {"xytext": (0, -2), "va": "top"}
        text = f"{a:+.2f}" if a != before else ""
        ax.annotate(text, (x, a), textcoords="offset points", ha="center", fontsize=8, **side)
    if widths is None:
        ax.set_xticks(left + 0.5, range(len(credit)))
    ax.margins(y=0.22)
    tidy(ax)


# %% [markdown]
# ## 1. Reward minus baseline
# Eight answers to one question, three of them right. GRPO without the division by the standard
# deviation pays each rollout its reward minus the mean of its group.

# %%
rewards = torch.tensor([1.0, 0, 0, 1, 0, 0, 0, 1])
picture = Picture(figsize=(WIDTH, 2.4))
left, right = picture.subplots(1, 2)
left.bar(range(8), rewards, 0.9, color=palette.REWARD)
left.axhline(rewards.mean().item(), color=palette.MUTED, linestyle="--")
left.text(5, 0.4, "baseline: mean 0.375", ha="center", color=palette.MUTED, fontsize=8)
left.set(xlabel="rollout", ylabel="reward (no unit)", title="earned")
bars(right, group_norm(rewards))
right.set(xlabel="rollout", ylabel="credit (no unit)", title="credit: group_norm(rewards)")
tidy(left)
picture

# %% [markdown]
# The credit sums to zero, and a reward that everybody gets changes nothing. A rollout that
# crashed is not valid: it gets 0 and does not move the baseline of the others, whatever its
# reward says.

# %%
assert group_norm(rewards).sum() == 0
assert_close(group_norm(rewards + 10), group_norm(rewards))
crashed = torch.cat([rewards, torch.tensor([float("nan")])])
with_crash = group_norm(crashed, valid=~crashed.isnan())
assert with_crash[-1] == 0 and torch.equal(with_crash[:-1], group_norm(rewards))

# %% [markdown]
# ## 2. Nothing to learn is exactly nothing
# All rollouts of a group often earn the same. Then there is nothing to prefer, and the credit
# should be 0. Predict before you run: ten rollouts earn the same reward c, for c = 0.01, 0.02,
# ..., 1.00. For how many c is `r - r.mean()` not zero in float32?

# %%
same = (torch.arange(1, 101) / 100).unsqueeze(1).expand(100, 10).contiguous()  # [groups, group]
plain = same - same.mean(-1, keepdim=True)
guarded = plain / (same.std(-1, keepdim=True) + 1e-8)  # the usual guard against 0/0
ours, ours_std = group_norm(same), group_norm(same, std=True)
print(f"r - r.mean(): {(plain != 0).any(-1).sum()} of 100 groups not zero, at most {plain.abs().max():.1e}")
print(f"divided by std + 1e-8: at most {guarded.abs().max():.2f}; group_norm: {(ours != 0).sum()} not zero")
assert (plain != 0).any() and (plain.sign() == plain.sign()[:, :1]).all() and guarded.abs().max() > 0.1
assert (ours == 0).all() and (ours_std == 0).all()

# %% [markdown]
# The mean of ten equal numbers need not be that number: the sum was rounded. The residue looks
# harmless until a standard deviation divides it, which is 0 or a residue itself. A group that
# says nothing then moves the policy, all ten rollouts in one direction; how far depends on the
# order in which your processor adds. The dashed line is what a lone success among ten gets.

# %%
picture = Picture(figsize=(WIDTH, 2.7))
left, right = picture.subplots(1, 2)
style = {"linestyle": "none", "marker": "o", "markersize": 3}
left.plot(same[:, 0], plain[:, 0] * 1e8, color=palette.MUTED, **style, label="r - r.mean()")
left.plot(same[:, 0], ours[:, 0] * 1e8, color=palette.INK, **style, label="group_norm")
left.set(ylabel="credit (1e-8)", title="baseline only")
left.legend(fontsize=8, loc="lower left")
right.plot(same[:, 0], guarded[:, 0].abs(), color=palette.MUTED, **style)
right.axhline(3, color=palette.INK, linestyle="--")
right.text(0.02, 3.4, "a real success, 1 of 10", fontsize=8)
right.set(yscale="log", ylabel="|credit| (no unit)", title="divided by std + 1e-8")
for ax in (left, right):
    ax.set_xlabel("the reward of all ten rollouts (no unit)")
    tidy(ax)
picture

# %% [markdown]
# `group_norm` first subtracts one of the rewards, the pivot, from all of them. Equal rewards
# are then exactly 0 before any mean is taken, and a real difference survives, however small.
# Exact zeros matter later: tokens with credit 0 leave the batch and its token count, those with
# credit 1e-9 stay in both.

# %%
nearly = torch.tensor([1.0, 1.0, 1.0 + 1e-6, 1.0])
pivoted = nearly - nearly[0]
assert torch.equal(group_norm(nearly), pivoted - pivoted.mean())
assert (group_norm(nearly) != 0).all()
assert_close(group_norm(torch.eye(10)[0], std=True)[0], torch.tensor(3.0))  # the success of section 2's picture

# %% [markdown]
# ## 3. Long rollouts weigh more
# Credit is per rollout, the loss is per token: a rollout of 40 tokens pushes 40 times. Below a
# bar is as wide as its rollout is long, so its area is what it adds to the update. Predict: two
# right and two wrong answers, is there more blue or more orange?

# %%
rewards, lengths = torch.tensor([1.0, 0, 0, 1]), torch.tensor([10.0, 40, 20, 10])
by_rollout, by_token = group_norm(rewards), group_norm(rewards, lengths)
picture = Picture(figsize=(WIDTH, 2.6))
for ax, credit, name in zip(
    picture.subplots(1, 2, sharey=True),
    (by_rollout, by_token),
    ("group_norm(r)", "group_norm(r, lengths)"),
    strict=True,
):
    bars(ax, credit, lengths)
    ax.set(xlabel="tokens of the group", title=f"{name}: area {(lengths * credit).sum():+.0f}")
picture.axes[0].set_ylabel("credit of each token (no unit)")
picture

# %% [markdown]
# With the plain mean the group as a whole is pushed down, only because its wrong answers are
# long. The length-weighted baseline b = sum(L r) / sum(L) makes the areas cancel: the credit is
# zero-mean over tokens instead of over rollouts.

# %%
assert (lengths * rewards).sum() / lengths.sum() == 0.25  # b: 20 rewarded tokens of 80
assert by_rollout.sum() == 0 and (lengths * by_rollout).sum() == -20
assert by_token.sum() == 1 and (lengths * by_token).sum() == 0

# %% [markdown]
# ## 4. Divide by what?
# Two prompts: a hard one with 1 success in 8, an easy one with 7 in 8. GRPO as first published
# divides by the group's standard deviation, MaxRL by its mean. Predict: which of the two
# prompts does each of them push harder?

# %%
METHODS = {"mean only": group_norm, "std": lambda r: group_norm(r, std=True), "max_rl": max_rl}
prompts = {"hard: 1 of 8": torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0]), "easy: 7 of 8": torch.tensor([1.0] * 7 + [0])}
picture = Picture(figsize=(WIDTH, 4))
for row, (prompt, rewards) in zip(picture.subplots(2, 3, sharex=True), prompts.items(), strict=True):
    for ax, (name, fn) in zip(row, METHODS.items(), strict=True):
        credit = fn(rewards)
        bars(ax, credit)
        ax.set_title(f"{name}, {prompt}: sum of |credit| {credit.abs().sum():.2f}", fontsize=8)
    row[0].set_ylabel("credit (no unit)")
for ax in row:
    ax.set_xlabel("rollout")
picture

# %% [markdown]
# In total, mean only and std spend as much on the easy prompt as on the hard one; max_rl spends
# seven times as much on the hard one.
#
# For every number of successes, the credit of each success and of each failure. The column of
# `std` reads the same from below as from above, with the sign changed; that of `max_rl` does
# not.

# %%
rows = []
for k in range(1, 8):
    earned = (torch.arange(8) < k).float()
    ends = {name: fn(earned)[[0, -1]].tolist() for name, fn in METHODS.items()}
    rows.append(
        {"successes of 8": k}
        | {f"{n}: {w}": e for n, pair in ends.items() for w, e in zip(("success", "failure"), pair, strict=True)}
    )
table = pl.DataFrame(rows)
spent = {name: [fn(rewards).abs().sum() for rewards in prompts.values()] for name, fn in METHODS.items()}
assert_close([hard / easy for hard, easy in spent.values()], [torch.tensor(x) for x in (1.0, 1.0, 7.0)])
assert (table["std: success"] + table["std: failure"].reverse()).abs().max() < 1e-6
assert [round(a, 4) for a in table["max_rl: success"]] == [round(8 / k - 1, 4) for k in range(1, 8)]
table.with_columns(pl.selectors.float().round(2))

# %% [markdown]
# ## 5. Which prompts are pushed hardest
# Each estimator estimates a multiple w(p) of the gradient of the pass rate p, and the multiple
# depends on p. `oracle.weight` sums over all groups of N rewards, so the curves are exact.
# Predict: std is often said to favour hard prompts. Is w larger at p = 0.1 or at 0.9?

# %%
STD, MAX = "#8e3b8e", "#1b7f5c"
CURVES = {  # name: (advantage, colour, line)
    "mean only": (group_norm, palette.INK, "-"),
    "std": (METHODS["std"], STD, "-"),
    "max_rl": (max_rl, MAX, "-"),
    "max_rl, minus_one": (lambda r: max_rl(r, all_fail="minus_one"), MAX, "--"),
}
ps = torch.linspace(-4, 4, 41).double().sigmoid()  # more points near 0 and 1
w = {
    (name, n): torch.tensor([oracle.weight(p, n, fn) for p in ps.tolist()])
    for name, (fn, _, _) in CURVES.items()
    for n in (4, 8, 64)
}

# %%
picture = Picture(figsize=(WIDTH, 5.2))
axes = picture.subplots(2, 3, sharex=True, sharey="row")
for (top, low), n in zip(axes.T, (4, 8, 64), strict=True):
    for name, (_, colour, line) in CURVES.items():
        top.plot(ps, w[name, n], line, color=colour, label=name)
        low.plot(ps, w[name, n] * ps * (1 - ps), line, color=colour)
    top.plot(ps, 1 / ps, ":", color=palette.MUTED, label="1/p: maximum likelihood")
    top.set(yscale="log", title=f"N = {n}")
    low.set_xlabel("pass rate p")
    for ax in (top, low):
        tidy(ax)
axes[0, 0].set_ylabel("w(p) (no unit)")
axes[1, 0].set_ylabel("w(p) p (1-p) (no unit)")
picture.legend(*top.get_legend_handles_labels(), loc="outside upper center", ncols=5, fontsize=8, frameon=False)
picture

# %% [markdown]
# - mean only: w = (N-1)/N everywhere. (N-1)/N is the price of a mean that holds the
#   rollout's own reward.
# - std: p = 0.1 and p = 0.9 weigh the same, 2.33 for N = 8. It favours rare outcomes, of either
#   kind.
# - max_rl favours hard prompts only, and never by more than N - 1.
#
# On groups of N = 2 the last two are one and the same.


# %%
def weight(p, n, name):
    return oracle.weight(p, n, CURVES[name][0])


assert_close([weight(p, 8, "mean only") for p in (0.1, 0.5, 0.9)], [7 / 8] * 3)
assert_close([weight(p, 8, "std") for p in (0.1, 0.5, 0.9)], [2.3277, 1.8557, 2.3277], rtol=1e-4, atol=0)
assert_close([weight(p, 8, "max_rl") for p in (0.1, 0.5, 0.9)], [5.2170, 1.9844, 1.1111], rtol=1e-4, atol=0)
assert_close([weight(1e-7, n, "max_rl") for n in (4, 8, 64)], [3.0, 7.0, 63.0], rtol=1e-4, atol=0)
assert all((curve.diff() < 0).all() and curve.max() < n - 1 for (name, n), curve in w.items() if name == "max_rl")
assert_close(oracle.weight(0.1, 8, lambda r: r - (r.sum() - r) / 7), 1.0)  # the mean of the others has no such price
pair = torch.tensor([1.0, 0.0])
assert METHODS["std"](pair).tolist() == max_rl(pair).tolist() == [1.0, -1.0]

# %% [markdown]
# The lower row multiplies w by dp/dz = p (1-p), for a policy with a single yes/no logit z: it
# is what the logit feels. There even std pushes p = 0.5 most. max_rl pushes most at p = 1 -
# N^(-1/(N-1)): a larger group moves the attention to harder prompts.

# %%
peak = {key: ps[(curve * ps * (1 - ps)).argmax()].item() for key, curve in w.items()}
for n in (4, 8, 64):
    best = 1 - n ** (-1 / (n - 1))
    print(
        f"N = {n}: std pushes most at p = {peak['std', n]:.2f}, max_rl at {peak['max_rl', n]:.2f} (exactly {best:.3f})"
    )
    assert abs(peak["std", n] - 0.5) < 1e-6 and abs(peak["max_rl", n] - best) < 0.03

# %% [markdown]
# ## 6. Of which order is MaxRL?
# log p = -(1-p) - (1-p)^2/2 - (1-p)^3/3 - ...; its first T terms have the gradient sum_{k<T}
# (1-p)^k times that of p. T = 1 is the pass rate, T without end is maximum likelihood. MaxRL on
# groups of N is said to be of order N. Predict: of which order is it on groups of 4?
#
# A policy of three actions, one of them right; `expected_update` sums over every group.

# %%
logits, right = torch.tensor([-0.7, 0.4, 0.1], dtype=torch.float64), torch.tensor([1.0, 0, 0], dtype=torch.float64)


def first_terms(order):
    return oracle.gradient_of(logits, lambda d: -sum((1 - d @ right) ** k / k for k in range(1, order + 1)))[0]


truncated = [first_terms(order) for order in range(1, 7)]
shipped = oracle.expected_update(logits, right, max_rl, group=4)[0]
kept = oracle.expected_update(logits, right, CURVES["max_rl, minus_one"][0], group=4)[0]

# %%
picture = Picture(figsize=(WIDTH, 2.6))
ax = picture.subplots()
ax.plot(range(1, 7), truncated, "o", color=palette.INK, label="gradient of the first T terms of log p")
ax.axhline(shipped, color=MAX, label="max_rl, groups of 4")
ax.axhline(kept, color=MAX, linestyle="--", label='max_rl, groups of 4, all_fail="minus_one"')
ax.set(xlabel="order T", ylabel="push on the right logit")
ax.legend(fontsize=8)
tidy(ax)
picture

# %% [markdown]
# Three, not four. A group without a success has mean 0 and gets zeros, and with it goes the
# baseline of that group, which is part of the estimate. `all_fail="minus_one"` keeps it: each
# rollout of such a group gets -1, and the order is N. For N = 1 that is plain policy gradient,
# where "zero" gives nothing at all.

# %%
assert_close(shipped, truncated[3 - 1])
assert_close(kept, truncated[4 - 1])
nothing = torch.zeros(4)
assert max_rl(nothing).tolist() == [0, 0, 0, 0] and max_rl(nothing, all_fail="minus_one").tolist() == [-1, -1, -1, -1]
assert_close([weight(0.3, 1, "max_rl"), weight(0.3, 1, "max_rl, minus_one")], [0.0, 1.0])

# %% [markdown]
# ## 7. Self-play: a baseline that is remembered
# In a zero-sum game one episode gives two traces whose rewards sum to 0. Predict the mean of
# any set of episodes, and so what `group_norm` does to the rewards.
#
# RAE keeps a moving average per role instead. It is a pure function: averages go in with the
# call and come out beside the credit. Here the first player wins 80% of 100 games.

# %%
coin = torch.Generator().manual_seed(0)
won = torch.where(torch.rand(100, generator=coin) < 0.8, 1.0, -1.0)
rewards, roles = torch.stack([won, -won], 1).flatten(), ["first", "second"] * 100
assert torch.equal(group_norm(rewards), rewards)  # a baseline of 0 is none
credit, state = rae(rewards, roles)
state

# %%
picture = Picture(figsize=(WIDTH, 3.2))
for ax, role, mean in zip(picture.subplots(1, 2, sharey=True), ("first", "second"), (0.6, -0.6), strict=True):
    mine = torch.tensor([r == role for r in roles])
    r, a = rewards[mine], credit[mine]
    colours = [palette.POSITIVE[3] if x > 0 else palette.NEGATIVE[3] for x in a]
    ax.vlines(range(100), r - a, r, color=colours, linewidth=1)
    ax.plot(r, "o", color=palette.REWARD, markersize=2, label="reward")
    ax.plot(r - a, color=palette.INK, label="baseline before the game")
    ax.axhline(mean, color=palette.MUTED, linestyle="--", label="expected reward")
    ax.set(xlabel=f"game of the {role} player", title=f"{role} player")
    tidy(ax)
picture.axes[0].set_ylabel("reward; stems: credit (no unit)")
picture.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8, frameon=False)
picture

# %% [markdown]
# A trace is scored before its reward moves the average, so the very first one gets its reward
# as it is. The state given stays as it was: a cell may run again, and a stream cut into two
# calls gives the same credit.

# %%
head, middle = rae(rewards[:60], roles[:60])
rest, end = rae(rewards[60:], roles[60:], middle)
again, _ = rae(rewards[60:], roles[60:], middle)
assert torch.equal(torch.cat([head, rest]), credit) and torch.equal(again, rest) and end == state
assert credit[0] == rewards[0] and rae(rewards[:0], [])[1].baselines == {}

# %% [markdown]
# How much does it help? A baseline takes the squared mean reward out of the second moment. With
# an 80% winner that is 36%; in Kuhn poker, the small game on which self-play is often shown,
# less than 1%. Expect an effect where roles are unequal, and none in Kuhn.

# %%
chances, value = kuhn.outcomes(kuhn.uniform()), kuhn.value(kuhn.uniform())  # of the first player
second_moment = sum(p * gain**2 for gain, p in chances.items())
share = value**2 / second_moment
print(f"Kuhn poker, random play: mean {value:+.3f}, second moment {second_moment:.3f}, share {share:.1%}")
assert share < 0.01
late, raw = credit[80:].square().mean(), rewards[80:].square().mean()
print(f"our game, after the first 40: second moment {raw:.2f} of the rewards, {late:.2f} of the credit")
assert raw == 1 and late < 0.85

# %% [markdown]
# ## 8. Compare like with like
# A proposer writes two problems, three solvers attempt each. The solvers of problem A earn [1,
# 1, 0], those of problem B [0, 0, 1]. Predict the credit of the one success on B: more or less
# than that of a success on A?

# %%
solved, problem = torch.tensor([1.0, 1, 0, 0, 0, 1]), ["A", "A", "A", "B", "B", "B"]
pooled = group_norm(solved)
within = hierarchical(solved, ["solver"] * 6, problem, episode_agents=["solver"])
picture = Picture(figsize=(WIDTH, 2.5))
for ax, a, name in zip(picture.subplots(1, 2, sharey=True), (pooled, within), ("pooled", "hierarchical"), strict=True):
    bars(ax, a)
    ax.axvline(3, color=palette.MUTED, linestyle="--")
    ax.set_xticks([0.5, 1.5, 2.5, 3.5, 4.5, 5.5], [f"{p}: {int(r)}" for p, r in zip(problem, solved, strict=True)])
    ax.set(xlabel="problem: reward", title=name)
picture.axes[0].set_ylabel("credit (no unit)")
picture

# %% [markdown]
# Pooled, a success is a success. Compared within its problem, the success on the hard one gets
# 2/3 and each on the easy one 1/3. If nobody solves B, pooling still pays B's solvers a
# penalty, for no better reason than that their problem was harder.
#
# Proposers are compared across the group, never with solvers.

# %%
assert_close(within, torch.tensor([1.0, 1, -2, -1, -1, 2]) / 3)
assert pooled.abs().tolist() == [0.5] * 6
unsolved = torch.tensor([1.0, 1, 0, 0, 0, 0])
assert (group_norm(unsolved)[3:] < 0).all()
assert (hierarchical(unsolved, ["solver"] * 6, problem, episode_agents=["solver"])[3:] == 0).all()
traces, which = torch.tensor([0.4, 1, 1, 0, 0, 0, 0, 0]), ["A"] * 4 + ["B"] * 4
both = hierarchical(traces, ["proposer", *["solver"] * 3] * 2, which, episode_agents=["solver"])
assert_close(both, torch.tensor([0.2, 1 / 3, 1 / 3, -2 / 3, -0.2, 0, 0, 0]))

# %% [markdown]
# ## 9. A price on length
# The linear penalty takes from each reward: the pass rate times 0.25 x output tokens + 0.1 x
# input tokens + 0.1 x turns, each as a share of the group's largest. Then the baseline is
# taken, of what is left. Three rollouts, the first two right:

# %%
from prl.advantages import linear_length_penalty

rewards = torch.tensor([1.0, 1, 0])
counts = {"output tokens": [10.0, 20, 40], "input tokens": [20.0, 10, 40], "turns": [1.0, 2, 4]}
shaped = linear_length_penalty(rewards, *map(torch.tensor, counts.values()))

# %%
picture = Picture(figsize=(WIDTH, 2.8))
taken, before, after = picture.subplots(1, 3)
total = torch.zeros(3)
for (name, values), price, grey in zip(counts.items(), (0.25, 0.1, 0.1), ("INK", "MUTED", "LINE"), strict=True):
    part = 2 / 3 * price * torch.tensor(values) / max(values)  # 2/3 is the pass rate
    taken.bar(range(3), part, 0.9, total, color=getattr(palette, grey), label=name)
    total = total + part
taken.legend(fontsize=8)
taken.set(xlabel="rollout", xticks=range(3), ylabel="reward (no unit)", title="taken from the reward")
bars(before, group_norm(rewards))
bars(after, group_norm(shaped))
before.set(xlabel="rollout", ylabel="credit (no unit)", title="credit without the penalty")
after.set(xlabel="rollout", title="credit with it")
tidy(taken)
picture

# %% [markdown]
# The shorter of two right answers now gets more. The pass rate in front has a purpose: a prompt
# that nobody solves is not made shorter. And a prompt that everybody solves, which had no
# signal, gets one that is about length alone.

# %%
assert_close(rewards - shaped, total)
assert_close(group_norm(shaped), torch.tensor([0.4167, 0.3750, -0.7917]), rtol=0, atol=5e-5)
three = [torch.tensor(values) for values in counts.values()]
assert (group_norm(linear_length_penalty(torch.zeros(3), *three)) == 0).all()
everybody = group_norm(linear_length_penalty(torch.ones(3), *three))
assert (everybody[:2] > 0).all() and everybody[2] < 0

# %% [markdown]
# ## 10. One prompt, one vote
# By default every token of the batch weighs the same, so a prompt with long rollouts has more
# say. Prompt-mean weights give each token 1 / T_q, T_q the tokens of its own prompt. Prompt A:
# 4 tokens with loss 1. Prompt B: 12 tokens with loss 3. Predict both means.

# %%
from prl.advantages import prompt_mean_weights

loss = torch.tensor([1.0] * 4 + [3.0] * 12)
token = torch.ones(16)
prompt = torch.cat(
    [prompt_mean_weights(torch.tensor([4.0])).expand(4), prompt_mean_weights(torch.tensor([12.0])).expand(12)]
)

# %%
picture = Picture(figsize=(WIDTH, 2.3))
for ax, w_rl, name in zip(picture.subplots(1, 2, sharey=True), (token, prompt), ("token", "prompt"), strict=True):
    mean, _ = combine({"rl": loss}, {"rl": w_rl}, {"rl": w_rl.sum()})
    part = (w_rl / w_rl.sum()).tolist()
    ax.bar(range(16), part, 0.9, color=[palette.COMPONENTS["rl"]] * 4 + [palette.COMPONENTS["rl"] + "80"] * 12)
    ax.set(xlabel="token: 0 to 3 of A, 4 to 15 of B", title=f"{name}: A has {sum(part[:4]):.0%}, mean loss {mean:.2f}")
    tidy(ax)
picture.axes[0].set_ylabel("share of the batch (no unit)")
picture

# %% [markdown]
# The weights of a prompt sum to 1, so N_rl, the sum of weights, counts prompts. A token whose
# credit is 0 leaves the loss and takes its weight along: the rest of its prompt is not scaled
# up.

# %%
for w_rl, mean in ((token, 2.5), (prompt, 2.0)):
    assert_close(combine({"rl": loss}, {"rl": w_rl}, {"rl": w_rl.sum()})[0], torch.tensor(mean))
assert prompt[:4].sum() == 1 and abs(prompt[4:].sum() - 1) < 1e-6
lengths, credit = torch.tensor([2.0, 6, 4]), torch.tensor([0.5, -0.5, 0])
each = prompt_mean_weights(lengths)  # one number per rollout, 1/12 here
assert_close((each * lengths)[credit != 0].sum(), torch.tensor(8 / 12))

# %% [markdown]
# ## 11. Many groups, any order, your own advantage
# Rollouts come back in the order in which they end. `by_group` takes the group of each row and
# any function of one group's rewards, and returns the rows in their order. Groups may have any
# size.

# %%
ids = ["p1", "p2", "p1", "p3", "p2", "p1", "p2"]
rewards = torch.tensor([1.0, 0, 0, 1, 1, 0, 1])
own = {
    "group_norm": by_group(group_norm, ids, rewards),
    "r - median": by_group(lambda r: r - r.median(), ids, rewards),
    "best only": by_group(lambda r: (r == r.max()).float(), ids, rewards),
}
pl.DataFrame({"group": ids, "reward": rewards.tolist()} | {k: v.tolist() for k, v in own.items()}).with_columns(
    pl.selectors.float().round(3)
)

# %% [markdown]
# p3 came back alone, so `group_norm` gives it 0. Predict the classical mistake: two prompts
# whose rollouts alternate, all rollouts of p1 right and all of p2 wrong. What do equal blocks
# of two rows say?

# %%
order = torch.tensor([5, 2, 6, 0, 3, 1, 4])
shuffled = by_group(group_norm, [ids[i] for i in order], rewards[order])
assert_close(shuffled, own["group_norm"][order])
alternating, two = torch.tensor([1.0, 0, 1, 0]), ["p1", "p2", "p1", "p2"]
assert own["group_norm"][3] == 0 and by_group(group_norm, two, alternating).tolist() == [0, 0, 0, 0]
assert group_norm(alternating.view(2, 2)).flatten().tolist() == [0.5, -0.5, 0.5, -0.5]  # credit out of nothing

# %% [markdown]
# ## 12. From rollouts to tokens
# Everything between the stages can be made by hand: a step is one model call, a trace the calls
# of one rollout, a group the rollouts of one task. Words are tokens here. Four rollouts add 17
# and 25, two of them with a tool.

# %%
words = "user: 17 + 25 = ? call add <end> tool: 42 it is 32 43 so".split()


def ids_of(text):
    return [words.index(word) for word in text.split()]


def rollout(name, reward, *turns):
    steps, seen = [], ids_of("user: 17 + 25 = ?")
    for said, then in turns:  # what the model says, what the environment puts after it
        steps.append(Step(seen, ids_of(said), [-0.5] * len(said.split())))
        seen = seen + ids_of(said) + ids_of(then)
    return Episode(name, [Trace(name, "agent", steps, interleave(steps, id=name), reward)])


# %%
episodes = [
    rollout("r0", 1.0, ("call add <end>", "tool: 42"), ("so it is 42 <end>", "")),
    rollout("r1", 1.0, ("42 <end>", "")),
    rollout("r2", 0.0, ("it is 32 <end>", "")),
    rollout("r3", 0.0, ("call add <end>", "tool: 42"), ("it is 43 <end>", "")),
]
group = Group("sums/0", "sums", Task("0", "17 + 25 = ?", answer="42"), episodes)
print(group, group.rewards.tolist(), group.lengths.tolist())
group.samples

# %% [markdown]
# `spread` puts the number of a rollout on each of its trained tokens and exactly 0 on the
# others: the prompt, and what the tool said. `assign` does that and stores the stream on the
# samples.

# %%
credit = group_norm(group.rewards, group.lengths)
streams = spread(credit, [sample.loss_mask for sample in group.samples])
scored_group = group.assign(advantages=credit)
for sample, stream in zip(scored_group.samples, streams, strict=True):
    assert torch.equal(stream, torch.from_numpy(sample.advantages.copy()))
    assert (sample.advantages[~sample.loss_mask] == 0).all()
assert abs(sum(stream.sum() for stream in streams)) < 1e-5  # zero-mean over the tokens, see section 3
viz.group_advantages(scored_group, words.__getitem__)

# %% [markdown]
# Look at r3: its tool call is the same as that of r0, word for word, and is punished, since the
# answer after it was wrong. Credit per rollout cannot know better. Press a button to see
# another stream; hover over a token for its values.

# %%
first = [sample.advantages[sample.loss_mask][:3] for sample in scored_group.samples]
assert (first[0] > 0).all() and (first[3] < 0).all()
viz.token_html(scored_group, words.__getitem__)

# %% [markdown]
# Section 2 said that exact zeros leave and residues stay. Predict N_rl, the number of tokens
# that the loss is divided by, if all four rollouts earn the same; and if their credit is 1e-9
# instead of 0.

# %%
for c, tokens in ((0.0, 0), (1e-9, 21)):
    batch = pack(group.assign(advantages=torch.full((4,), c)).samples, max_tokens=64)
    print(f"credit {c:g}: {batch}")
    assert batch.counts["rl"] == tokens

# %% [markdown]
# ## What to try next
# - Pay the tool calls nothing: give `group.assign(advantages=...)` a list, one stream per
#   sample.
# - Set N = 2 in section 5. Why do std and max_rl coincide?
# - Let the first player of section 7 win 50%, and set `decay=0.5`. Does RAE still help?
# - Write your advantage as a function of one group's rewards and plot `oracle.weight(p, 8,
#   fn)`.
#
# Next: 104 makes the training samples out of model calls; 201 trains with all of it.
