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
# # 105 Prove your estimator by enumeration
# What does an advantage climb? Not the mean reward, as a rule. On a problem small enough you can
# add up every group of answers that could be drawn, and know. You will prove what Dr. GRPO, GRPO
# and MaxRL climb, find the objective of an advantage that you write yourself, put three popular
# mistakes on trial (one is innocent), and compute the exact value of two games.
#
# Needs: CPU, no downloads, `prl[notebook]`. Runs in about 20 seconds.

# %%
from functools import partial
from math import log

import polars as pl
import torch

import prl

prl.check_types()  # shapes are checked from here on; call it before other imports of prl

# %%
from prl import oracle, testing
from prl.advantages import group_norm, max_rl
from prl.oracle import kuhn, tic_tac_toe
from prl.viz import palette
from prl.viz.picture import WIDTH, Picture, tidy

GRPO = partial(group_norm, std=True)
MAX_RL, MAX_RL_N = max_rl, partial(max_rl, all_fail="minus_one")
NAMES = {"Dr. GRPO": group_norm, "GRPO": GRPO, "MaxRL": MAX_RL, "MaxRL, minus_one": MAX_RL_N}
COLOURS = {
    "Dr. GRPO": palette.MUTED, "GRPO": palette.COMPONENTS["ref_kl"], "MaxRL": palette.COMPONENTS["rl"],
    "MaxRL, minus_one": palette.POSITIVE[2], "yours": palette.NEGATIVE[4],
}  # fmt: skip

# %% [markdown]
# ## 1. One line
# A policy over three answers, the first is right. Four answers make a group. `expected_update`
# lists all 3^4 = 81 groups, gives each answer its credit, and adds up A grad log p with the
# probability of each group. `gradient_of` differentiates any function of the distribution. Here
# it is the pass rate p.

# %%
logits = torch.tensor([-0.7, 0.4, 0.1], dtype=torch.float64)
update = oracle.expected_update(logits, [1, 0, 0], group_norm, group=4)
grad_p = oracle.gradient_of(logits, lambda probabilities: probabilities[0])
update, grad_p

# %% [markdown]
# The advantage of Dr. GRPO is r - mean(r). Predict before you run: is the update the gradient of
# the pass rate?

# %%
torch.testing.assert_close(update, 3 / 4 * grad_p)
update / grad_p

# %% [markdown]
# Up to a factor. The mean contains the answer's own reward, which takes (N - 1)/N of the update:
# 3/4 for N = 4. A factor is harmless. For 0/1 rewards every advantage gives grad p times a number
# w, as all successes are alike and so are all failures. But w may depend on p, and then the
# update climbs another objective: the one whose derivative is w(p).

# %%
ratios = {name: oracle.expected_update(logits, [1, 0, 0], fn, group=4) / grad_p for name, fn in NAMES.items()}
p = logits.softmax(-1)[0].item()
for name, ratio in ratios.items():
    assert ratio.max() - ratio.min() < 1e-12  # one number for all logits
    assert abs(ratio[0].item() - oracle.weight(p, 4, NAMES[name])) < 1e-12
{name: ratio[0].item() for name, ratio in ratios.items()}

# %% [markdown]
# `oracle.weight(p, n, advantage)` gives that number for any pass rate.
#
# ## 2. Why not sample?
# MaxRL is meant to climb log p, cut off after some order T: its weight is the sum of (1 - p)^k
# over k < T, which tends to 1/p. One reads that T is N, the group's size. Let us ask samples
# first: 200,000 groups of 16 at a pass rate of 5 percent.

# %%
p, n = 0.05, 16
order = {T: sum((1 - p) ** k for k in range(T)) for T in (n - 1, n)}
generator = torch.Generator().manual_seed(0)
rewards = (torch.rand(200_000, n, generator=generator) < p).double()
per_group = (max_rl(rewards) * (rewards / p - (1 - rewards) / (1 - p))).mean(-1)  # grad log p in units of grad p
drawn = torch.arange(1, len(per_group) + 1)
running = per_group.cumsum(0) / drawn
exact = oracle.weight(p, n, max_rl)

# %%
picture = Picture(figsize=(WIDTH, 3.0))
ax = picture.subplots()
ax.plot(drawn[99:], running[99:], color=palette.MUTED, label="mean over sampled groups")
for T, style in ((n, "--"), (n - 1, "-")):
    name = f"order {T}, " + ("N" if T == n else "N - 1")
    ax.axhline(order[T], color=palette.COMPONENTS["rl"], linestyle=style, label=name)
ax.set(xscale="log", xlabel="groups of 16 sampled", ylabel="weight w on grad p", ylim=(9.6, 12.4))
ax.legend(frameon=False, loc="upper right"), tidy(ax)
picture

# %% [markdown]
# Some thousands of groups tell the two orders apart here. How many would it take for p = 0.01 and
# groups of 128? The oracle knows the variance as well: `expect` averages any number of a group.


# %%
def groups_needed(p, n, errors=3):
    """Groups after which the two orders lie so many standard errors apart."""
    estimate = lambda r: (max_rl(r) * (r / p - (1 - r) / (1 - p))).mean()  # noqa: E731
    variance = oracle.expect(p, n, lambda r: estimate(r) ** 2) - oracle.weight(p, n, max_rl) ** 2
    return errors**2 * variance / (1 - p) ** (2 * n - 2)  # the orders differ by (1 - p)^(n - 1)


needed = {(p, n): round(groups_needed(p, n)) for p, n in ((0.05, 16), (0.01, 128))}
print(", ".join(f"p = {p}, N = {n}: {k:,} groups, {n * k:,} rollouts" for (p, n), k in needed.items()))
assert 3_000 < needed[0.05, 16] < 5_000 and 128 * needed[0.01, 128] > 29e6

# %% [markdown]
# Twenty-nine million rollouts, against 129 cases that the oracle adds up. It is certain: the order
# is N - 1. The reason is the group in which all fail: (r - mean)/mean is 0/0 there, and the usual
# choice is credit 0. Keeping the baseline, a credit of -1 for each failure, gives order N.

# %%
assert abs(exact - order[n - 1]) < 1e-12
assert abs(oracle.weight(p, n, MAX_RL_N) - order[n]) < 1e-12
for rate in (0.01, 0.1, 0.5, 0.9):
    for size in (2, 4, 8, 128):
        assert abs(oracle.weight(rate, size, group_norm) - (size - 1) / size) < 1e-12
        assert abs(oracle.weight(rate, size, max_rl) / sum((1 - rate) ** k for k in range(size - 1)) - 1) < 1e-10
        assert abs(oracle.weight(rate, size, MAX_RL_N) / sum((1 - rate) ** k for k in range(size)) - 1) < 1e-10

# %% [markdown]
# The same from the other side: write the objective down and differentiate it. Truncated at order
# T, log p is minus the sum of (1 - p)^k / k over k = 1 ... T.


# %%
def truncated_log(probabilities, T):
    failing = 1 - probabilities[0]
    return -sum(failing**k / k for k in range(1, T + 1))


for T, advantage in ((3, MAX_RL), (4, MAX_RL_N)):
    climbed = oracle.expected_update(logits, [1, 0, 0], advantage, group=4)
    torch.testing.assert_close(climbed, oracle.gradient_of(logits, partial(truncated_log, T=T)))

# %% [markdown]
# ## 3. Four weights, four objectives
# Predict before you run: GRPO also divides by the group's standard deviation. Compared with a
# prompt of p = 0.5, how does it weigh a hard prompt of p = 0.1, and an easy one of p = 0.9?

# %%
table = pl.DataFrame([
    {"p": p, "N": n} | {name: oracle.weight(p, n, fn) for name, fn in NAMES.items()} | {"log p": 1 / p}
    for p, n in ((0.01, 8), (0.1, 8), (0.5, 8), (0.9, 8), (0.1, 2), (0.1, 16))
])  # fmt: skip
table.with_columns(pl.col(pl.Float64).round(4))

# %% [markdown]
# It weighs both the same, and both more than the one in the middle: what it climbs is close to
# 2 arcsin(sqrt(p)), which is as steep near 1 as it is near 0. MaxRL is steep near 0 only. And
# with groups of two, GRPO and MaxRL are the same estimator on average.

# %%
row = {(line["p"], line["N"]): line for line in table.iter_rows(named=True)}
assert abs(row[0.1, 8]["GRPO"] - row[0.9, 8]["GRPO"]) < 1e-12 and row[0.1, 8]["GRPO"] > row[0.5, 8]["GRPO"]
assert abs(row[0.1, 2]["GRPO"] - row[0.1, 2]["MaxRL"]) < 1e-12
for (p, n), name, value in (((0.1, 8), "GRPO", 2.3277), ((0.1, 8), "MaxRL", 5.2170), ((0.01, 8), "MaxRL", 6.7935)):
    assert abs(row[p, n][name] - value) < 5e-5
assert abs(oracle.weight(0.3, 500, GRPO) - (0.3 * 0.7) ** -0.5) < 0.01  # the derivative of 2 arcsin(sqrt(p))

# %%
RATES = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)


def weights(advantage, n=8):
    return torch.tensor([oracle.weight(p, n, advantage) for p in RATES.tolist()], dtype=torch.float64)


def objective(w):
    """The integral of w over p, 0 at the right end."""
    area = torch.cumulative_trapezoid(w, RATES)
    return torch.cat([torch.zeros(1, dtype=torch.float64), area]) - area[-1]


# %%
def draw_objectives(advantages):
    picture = Picture(figsize=(WIDTH, 3.6))
    left, right = picture.subplots(1, 2)
    for name, advantage in advantages.items():
        w = weights(advantage)
        left.plot(RATES, w, color=COLOURS[name], label=name)
        right.plot(RATES, objective(w), color=COLOURS[name])
    left.plot(RATES, 1 / RATES, ":", color=palette.INK, label="log p")
    right.plot(RATES, RATES.log(), ":", color=palette.INK)
    left.set(ylim=(0, 8.5), xlabel="pass rate p", ylabel="weight w on grad p")
    right.set(xlabel="pass rate p", ylabel="objective climbed (0 at p = 0.99)", ylim=(-3, 0.1))
    left.legend(frameon=False), tidy(left), tidy(right)
    return picture


# %%
draw_objectives(NAMES)

# %% [markdown]
# ## 4. Your own advantage
# Between r - mean and (r - mean)/mean lies (r - mean)/sqrt(mean). Write it down and ask two
# questions: is it well behaved, and what does it climb?

# %%
naive = lambda r: (r - r.mean()) / r.mean().sqrt()  # noqa: E731
first = testing.check_advantage(naive)
first

# %% [markdown]
# On a group that fails it is 0/0, on negative rewards the root of a negative number. Both must be
# kept away from the division as well as from the result, since the gradient passes through the
# branch that `where` does not take. And r - mean(r) of equal rewards is not exactly 0 in float32;
# `group_norm` takes care of that.


# %%
def yours(r):
    mean = r.mean(-1, keepdim=True)
    paid = mean > 0
    return torch.where(paid, group_norm(r) / torch.where(paid, mean, 1.0).sqrt(), 0.0)


report = testing.check_advantage(yours)
assert {"constant group", "finite"} <= {finding.law for finding in first.failed}
assert report.ok, report
report

# %% [markdown]
# Predict before you run: with large groups the mean is p. Which function has the derivative
# 1/sqrt(p)?

# %%
draw_objectives({"Dr. GRPO": group_norm, "yours": yours, "MaxRL": MAX_RL})

# %%
for p in (0.1, 0.5, 0.9):
    assert abs(oracle.weight(p, 500, yours) - p**-0.5) < 0.02  # the derivative of 2 sqrt(p)
    assert oracle.weight(p, 8, group_norm) < oracle.weight(p, 8, yours) < oracle.weight(p, 8, max_rl)

# %% [markdown]
# ## 5. Three suspects
# ### Dividing by the wrong standard deviation
# `torch.std` divides by N - 1, the formula of GRPO by N. Many codes use one where another uses the
# other, and add 1e-6 to the denominator. Is the objective another one?


# %%
def bessel(r):
    return (r - r.mean()) / (r.std() + 1e-6)


share = {n: [oracle.weight(p, n, bessel) / oracle.weight(p, n, GRPO) for p in (0.05, 0.5, 0.9)] for n in (2, 8, 64)}
for n, values in share.items():
    assert all(abs(value - ((n - 1) / n) ** 0.5) < 1e-5 for value in values)
share

# %% [markdown]
# Innocent: a factor sqrt((N - 1)/N) for every p, which the learning rate absorbs. (In a group of
# one it is NaN.) What changed the objective was dividing by any standard deviation at all.
#
# ### A baseline that counts a broken rollout
# Three things can happen: right, wrong, and a crash of the environment. A crashed rollout is not
# trained on. It should not enter the mean either, but it has some number in its reward field: a 0,
# or what it had when it stopped. The code 7 marks a crash here.


# %%
def valid_only(r):
    return group_norm(torch.where(r == 7, torch.nan, r), valid=r != 7)


def counts_crashes(r, leftover):
    kept = torch.where(r == 7, leftover, r)
    return torch.where(r == 7, 0.0, kept - kept.mean())


# %% [markdown]
# Predict before you run: a crashed rollout gets no credit in either case. Can the policy learn to
# crash?

# %%
even, outcomes = torch.zeros(3, dtype=torch.float64), [1, 0, 7]  # right, wrong, crash; equally likely
BASELINES = {"valid only": valid_only} | {
    f"crash counts {x:g}": partial(counts_crashes, leftover=x) for x in (0.0, 5.0)
}
moves = {name: oracle.expected_update(even, outcomes, fn, group=4) for name, fn in BASELINES.items()}
pl.DataFrame([dict(zip(("baseline", "right", "wrong", "crash"), (name, *m.tolist()), strict=True))
              for name, m in moves.items()]).with_columns(pl.col(pl.Float64).round(4))  # fmt: skip

# %%
picture = Picture(figsize=(WIDTH, 2.8))
ax = picture.subplots()
for j, (name, colour) in enumerate(
    zip(moves, (palette.COMPONENTS["ce"], palette.LINE, palette.NEGATIVE[3]), strict=True)
):
    ax.bar(torch.arange(3) + 0.26 * (j - 1), moves[name], 0.24, color=colour, label=name)
ax.axhline(0, color=palette.INK, linewidth=0.8)
ax.set(
    xticks=range(3), xticklabels=["right", "wrong", "crash"], ylabel="expected update of the logit\n(learning rate 1)"
)
ax.legend(frameon=False, loc="upper center"), tidy(ax)
picture

# %% [markdown]
# Guilty. With a leftover of 5 every survivor of a group with a crash is below the mean and pushed
# down. The probability that they lose goes to the crash, on which nobody trained. With a
# leftover of 0 it is the other way round: surviving is paid for. With valid rollouts only, the
# crash's logit stays exactly where it is.

# %%
assert moves["valid only"][2] == 0 and moves["valid only"][0] == -moves["valid only"][1]
assert moves["crash counts 5"][2] > 0.2 and moves["crash counts 5"][0] < 1e-12
assert moves["crash counts 0"][2] < -0.02

# %% [markdown]
# ### One mean for all prompts
# Grouping by position instead of by prompt, or a mean over the whole batch: the baseline mixes an
# easy prompt with a hard one. As a tree: the first token is the prompt that the data loader drew,
# and only the rows below it are the policy.
#
# Predict before you run: is the update still along the gradient of the pass rate?

# %%
prompts = torch.tensor([[0, 0], [log(9), 0], [-log(9), 0]], dtype=torch.float64)  # p = 0.9 and p = 0.1
right = lambda tokens: (tokens[:, 1] == 0).double()  # noqa: E731
pooled = oracle.expected_update(prompts, right, group_norm, group=4)[1:]
goal = oracle.gradient_of(prompts, lambda d: d @ right(oracle.sequences(prompts)))[1:]
torch.testing.assert_close(pooled, 3 / 4 * goal)
noise = {"own mean": oracle.expect(0.9, 4, lambda r: group_norm(r).square().mean())}
noise["mean of all"] = oracle.expect(0.5, 4, lambda r: group_norm(r).square().mean())  # a mix of 0.9 and 0.1
noise | {"ratio": noise["mean of all"] / noise["own mean"]}

# %% [markdown]
# Innocent of bias: any baseline that ignores the answer itself is unbiased, and this one differs
# from such a baseline by the factor 3/4. It is guilty of noise: the mean square of the credit is
# 2.8 times as large, and groups that all fail push. And it loses its innocence when the sampler
# is not the trainer. The credit of one prompt then is constant on average, but not 0, and drifts
# (notebook 103).

# %%
lean = torch.tensor([[0, 0], [0.8, 0], [0.8, 0]], dtype=torch.float64)
off_policy = oracle.expected_update(prompts, right, group_norm, group=4, sampler=prompts + lean)[1:, 0]
q = (prompts + lean).softmax(-1)[1:, 0]
own = 3 / 4 * q * (1 - q) / 2  # the mean of one's own prompt, each drawn half of the time
assert abs(noise["mean of all"] / noise["own mean"] - 25 / 9) < 1e-12
assert off_policy[0] > 1.3 * own[0] and off_policy[1] < 0.8 * own[1]
pl.DataFrame(
    {"prompt": ["easy, p = 0.9", "hard, p = 0.1"], "own mean": own.tolist(), "mean of all": off_policy.tolist()}
)

# %% [markdown]
# ## 6. A game, solved
# Kuhn poker has three cards, two seats and one bet, small enough for its whole tree. `kuhn.value`
# is what seat 0 wins when a policy plays itself; `kuhn.nash_conv` is what both seats together
# could gain by playing their best against it: 0 for an equilibrium and nothing else.
#
# Predict before you run: seat 0 wins 1/8 per game when both play at random. What does it win at
# the equilibrium?

# %%
uniform = kuhn.uniform()
policies = {"uniform": uniform} | {f"equilibrium, alpha = {a:.3f}": kuhn.nash(a) for a in (0.0, 1 / 6, 1 / 3)}
pl.DataFrame([
    {"policy": name, "value": kuhn.value(x), "best response, seat 0": kuhn.best_response(x, 0),
     "best response, seat 1": kuhn.best_response(x, 1), "exploitability": kuhn.exploitability(x)}
    for name, x in policies.items()
]).with_columns(pl.col(pl.Float64).round(9))  # fmt: skip

# %%
assert abs(kuhn.value(uniform) - 1 / 8) < 1e-12 and abs(kuhn.nash_conv(uniform) - 11 / 12) < 1e-12
for alpha in torch.linspace(0, 1 / 3, 7, dtype=torch.float64).tolist():
    assert abs(kuhn.value(kuhn.nash(alpha)) + 1 / 18) < 1e-12 and kuhn.nash_conv(kuhn.nash(alpha)) < 1e-12

# %%
ways, alphas = (torch.linspace(0, end, 41, dtype=torch.float64).tolist() for end in (1.0, 1 / 3))
mixes = [{at: (1 - way) * uniform[at] + way * kuhn.nash(1 / 6)[at] for at in uniform} for way in ways]
actions = {"bet J": ("", 0), "bet K": ("", 2), "call with Q": ("cb", 1)}
picture = Picture(figsize=(WIDTH, 3.2))
left, free = picture.subplots(1, 2)
left.plot(ways, [kuhn.exploitability(x) for x in mixes], color=palette.NEGATIVE[4], label="exploitability")
left.plot(ways, [kuhn.value(x) for x in mixes], "--", color=palette.COMPONENTS["rl"], label="value of seat 0")
left.set(xlabel="way from uniform (0) to equilibrium (1)", ylabel="chips per game")
for style, (name, at) in zip(("-", "--", ":"), actions.items(), strict=True):
    free.plot(alphas, [kuhn.nash(a)[at] for a in alphas], style, color=palette.INK, label=f"seat 0: {name}")
free.set(xlabel="alpha", ylabel="probability", ylim=(-0.05, 1.05), title="every alpha is an equilibrium")
left.legend(frameon=False), tidy(left), free.legend(frameon=False), tidy(free)
picture

# %% [markdown]
# It loses 1/18. The reward of self-play fell while the policy got better, so a reward curve says
# nothing in a game against oneself; exploitability does. The right panel shows what is free: the
# equilibrium bluffs with the jack at any rate alpha up to 1/3, as long as it bets the king three
# times as often.
#
# ## 7. What a baseline per seat can do
# RAE gives each seat a running mean of its rewards as baseline. What it can take away is the
# square of the mean, out of the mean of the squares.


# %%
def removable(chances):
    """mean(R)^2 / mean(R^2) of the rewards {reward: probability} of one seat."""
    mean, square = (sum(chance * reward**k for reward, chance in chances.items()) for k in (1, 2))
    return mean**2 / square


x, o, draw = tic_tac_toe.outcomes()
shares = {
    "Kuhn, uniform": removable(kuhn.outcomes(uniform)),
    "Kuhn, equilibrium": removable(kuhn.outcomes(kuhn.nash(1 / 6))),
    "tic-tac-toe, random": removable({1: x, -1: o, 0: draw}),
}
shares

# %% [markdown]
# In Kuhn poker less than one percent: whoever tests RAE there will find nothing, at any number of
# seeds. Tic-tac-toe under random play favours the first player, who wins 58 percent of the games
# and loses 29, and a tenth of the second moment is the seat's. Beginning in the centre wins 69.

# %%
assert shares["Kuhn, uniform"] < 0.01 and shares["Kuhn, equilibrium"] < 0.01 < 0.1 < shares["tic-tac-toe, random"]
assert abs(x - 0.585) < 5e-4 and abs(o - 0.288) < 5e-4 and abs(draw - 0.127) < 5e-4
corner, edge, centre = (tic_tac_toe.outcomes(board="." * c + "X" + "." * (8 - c)) for c in (0, 1, 4))
assert abs((4 * corner.x + 4 * edge.x + centre.x) / 9 - x) < 1e-12 and centre.x > 0.69 > corner.x > edge.x

# %%
picture = Picture(figsize=(WIDTH, 3.2))
places = (corner, edge, corner, edge, centre, edge, corner, edge, corner)
for ax, end in zip(picture.subplots(1, 3), ("x", "o", "draw"), strict=True):
    shown = torch.tensor([getattr(place, end) for place in places]).reshape(3, 3)
    ax.imshow(shown, cmap="Blues", vmin=0, vmax=1.2)
    for cell, chance in enumerate(shown.flatten().tolist()):
        ax.text(cell % 3, cell // 3, f"{chance:.3f}", ha="center", va="center")
    ax.set(title="draw" if end == "draw" else f"{end.upper()} wins", xticks=[], yticks=[])
picture.suptitle("probability, by the cell of X's first move", fontsize=10)
picture

# %% [markdown]
# ## Try this
# - The median instead of the mean: `lambda r: r - r.median()`. Draw its objective.
# - `expected_update(..., stop=0, weights=lambda lengths: 1 / (lengths * len(lengths)))` divides
#   by each answer's length. Let a first token decide the reward and the rest when to stop: which
#   way do wrong answers grow?
# - Average two equilibria by hand, action by action, and with `kuhn.average`. When do they differ?
#
# Next: 104 for credit over agents and turns; 201 for a whole run with your advantage in it.
