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
# # 102 Trust regions: which tokens a loss lets learn
# A token was sampled with probability mu. When the trainer sees it, its probability is pi: the
# model has been updated since, or the sampling engine computes a little differently. A policy
# loss looks at the two and decides whether the token may learn, and how hard. You will draw that
# decision for six losses, see what two of them drop from the same 20,000 tokens, watch a dropped
# token turn a gradient into NaN, and write a loss of your own that passes every law.
#
# Needs: CPU, no downloads, `prl[notebook]`. Runs in about 20 seconds.

# %%
from functools import partial

import polars as pl
import torch

import prl

prl.check_types()  # shapes are checked from here on; call it before other imports of prl

# %%
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from prl import oracle, testing
from prl.losses import cispo, dppo, gspo, icepop, ipo, ppo_clip, tis
from prl.losses.ratios import kept_ratio, pair, same_shape
from prl.types import TokenLoss
from prl.viz import palette
from prl.viz.picture import WIDTH, Picture, tidy

COLOURS = {
    "ipo": palette.COMPONENTS["rl"], "icepop": palette.NEGATIVE[4], "dppo": palette.COMPONENTS["ce"],
    "ppo_clip": palette.COMPONENTS["ref_kl"], "cispo": palette.MUTED, "tis": palette.INK,
}  # fmt: skip

# %%
ZONES = ListedColormap([palette.LINE, palette.POSITIVE[1], palette.POSITIVE[3]])
LOG, TICKS = torch.logspace(-6, 0, 151, dtype=torch.float64), [1e-6, 1e-4, 1e-2, 1]

# %% [markdown]
# ## 1. One number per token
# A loss acts on a policy through its gradient. Per token that is one number, the push on
# log pi. For a plain policy gradient it is the advantage A, the credit of the answer that the
# token is in. With importance weights it is A pi/mu. A trust region sets it to 0 for some
# tokens, and a cap makes it smaller for some.


# %%
def push(loss, mu, pi, credit=1.0):
    """-d loss / d log pi of each token; above 0 the update makes the token more likely."""
    trainer = pi.log().requires_grad_()
    out = loss(trainer, mu.log(), torch.full_like(mu, credit))
    return -torch.autograd.grad(out.per_token.sum(), trainer)[0]


LOSSES = {"ipo": ipo, "icepop": icepop, "dppo": dppo, "ppo_clip": ppo_clip, "cispo": cispo, "tis": tis}
on_policy = torch.tensor([0.001, 0.1, 0.9], dtype=torch.float64)
{name: push(loss, on_policy, on_policy, credit=2.0).tolist() for name, loss in LOSSES.items()}

# %% [markdown]
# Where nothing has moved, all of them are the same loss: the push is A. They differ only in
# what they do once pi and mu are apart.

# %%
for loss in LOSSES.values():
    torch.testing.assert_close(push(loss, on_policy, on_policy, credit=2.0), torch.full_like(on_policy, 2.0))

# %% [markdown]
# ## 2. The map
# Each point of the square is a token: mu to the right, pi upward, both on a log scale. The
# diagonal is on-policy. IcePop keeps 0.2 <= pi/mu <= 5, so it will be a band along the
# diagonal. IPO keeps |pi - mu| <= 0.3.
#
# Predict before you run: which shape has IPO's region on these axes, and which of the two
# covers more of the square?


# %%
def zone(loss, credit=1.0, axis=LOG):
    """0 where a token is dropped, 2 where it has the whole weight pi/mu, 1 where the weight is capped; [pi, mu]."""
    pi, mu = torch.meshgrid(axis, axis, indexing="ij")
    weight = push(loss, mu, pi, credit) / credit
    return (weight != 0).int() + ((weight / (pi / mu) - 1).abs() < 1e-9)


def draw_map(ax, title, loss, credit=1.0, axis=LOG):
    ax.pcolormesh(axis, axis, zone(loss, credit, axis), cmap=ZONES, vmin=0, vmax=2)
    ax.plot([1e-6, 1], [1e-6, 1], ":", color=palette.INK, linewidth=0.8)
    ax.set(title=title, aspect="equal")
    if axis is LOG:
        ax.set(xscale="log", yscale="log", xticks=TICKS, yticks=TICKS)
        ax.minorticks_off()


# %%
SIGNS = {"A > 0": 1.0, "A < 0": -1.0}
maps = {name: (LOSSES[name], 1.0) for name in ("ipo", "icepop", "cispo", "tis")}
maps |= {f"{name}, {sign}": (LOSSES[name], A) for name in ("dppo", "ppo_clip") for sign, A in SIGNS.items()}
picture = Picture(figsize=(WIDTH, 5.2))
axes = picture.subplots(2, 4, sharex=True, sharey=True)
for ax, (title, (loss, credit)) in zip(axes.flat, maps.items(), strict=True):
    draw_map(ax, title, loss, credit)
picture.supxlabel("mu, probability when the token was sampled")
picture.supylabel("pi, probability now")
labels = ("gradient exactly 0", "weight capped", "whole weight pi/mu")
keys = [Patch(color=ZONES(i), label=label) for i, label in enumerate(labels)]
picture.legend(handles=keys, loc="outside upper center", ncols=3, frameon=False)
picture

# %% [markdown]
# IPO's region is not a band. It is nearly the whole square: only tokens that are likely,
# before or after, can move by 0.3. The light corner at the upper left is `max_ratio`, where
# the weight stops at 10,000. CISPO and TIS drop nothing; they cap. The first four maps do not
# depend on the sign of A. DPPO and PPO cut a token only where the advantage pulls it further
# out: DPPO is one side of IPO at a time, with 0.2 instead of 0.3.

# %%
area = {name: (zone(loss) > 0).double().mean().item() for name, loss in LOSSES.items()}
assert area["ipo"] > 0.8 and area["icepop"] < 0.25 and area["cispo"] == area["tis"] == 1
for name in ("ipo", "icepop", "cispo", "tis"):
    assert torch.equal(zone(LOSSES[name], 1.0), zone(LOSSES[name], -1.0))
one_side = (zone(dppo, 1.0) == 0) | (zone(dppo, -1.0) == 0)
assert torch.equal(one_side, zone(partial(ipo, eps=0.2)) == 0)
{name: f"{share:.0%} of the square" for name, share in area.items()}

# %% [markdown]
# ## 3. Three tokens
# - a: a rare token rises 100-fold, from 0.00001 to 0.001.
# - b: a nearly certain token falls from 0.99 to 0.80.
# - c: a common token rises from 0.5 to 0.85. Its ratio is only 1.7.
#
# Predict before you run: who drops a, who drops c?

# %%
TOKENS = {"a": (1e-5, 1e-3), "b": (0.99, 0.80), "c": (0.5, 0.85)}
rows = []
for name, (m, p) in TOKENS.items():
    given = torch.tensor([m], dtype=torch.float64), torch.tensor([p], dtype=torch.float64)
    row = {"token": name, "mu": m, "pi": p, "pi/mu": p / m, "|pi - mu|": abs(p - m)}
    row |= {loss: push(fn, *given).item() for loss, fn in LOSSES.items()}
    rows.append(row | {f"{loss}, A < 0": -push(LOSSES[loss], *given, -1.0).item() for loss in ("dppo", "ppo_clip")})
table = pl.DataFrame(rows).with_columns(pl.col(pl.Float64).round(5))
table

# %% [markdown]
# The columns named after a loss are weights: the push divided by A. IcePop drops a, although
# the distribution hardly changed: 0.001 of probability mass has moved. IPO keeps it with
# weight 100. And IPO drops c, which IcePop keeps. To one loss a step is a factor, to the other
# it is an amount of probability. Neither is the other with different settings: no band that
# drops c keeps a. On axes that are not logarithmic the two change shapes. Now IPO is the band
# and IcePop the fan; a stands at the origin.

# %%
picture = Picture(figsize=(WIDTH, 3.9))
axes = picture.subplots(1, 2, sharey=True)
linear = torch.linspace(1e-6, 1, 301, dtype=torch.float64)
for ax, name in zip(axes, ("ipo", "icepop"), strict=True):
    draw_map(ax, name, LOSSES[name], axis=linear)
    for token, (m, p) in TOKENS.items():
        ax.plot(m, p, "o", color=palette.INK, markersize=5, clip_on=False)
        ax.annotate(token, (m, p), (-12, 4), textcoords="offset points")
    ax.set(xlabel="mu, probability when sampled")
axes[0].set(ylabel="pi, probability now")
picture.legend(handles=[keys[0], keys[2]], loc="outside upper center", ncols=3, frameon=False)
picture

# %%
weight = {row["token"]: row for row in table.iter_rows(named=True)}
assert weight["a"]["icepop"] == 0 and weight["a"]["ipo"] == 100 and weight["a"]["|pi - mu|"] < 0.001
assert weight["c"]["ipo"] == 0 and weight["c"]["icepop"] == 1.7
assert weight["b"]["ipo"] == weight["b"]["icepop"] == 0.80808
assert weight["c"]["dppo"] == 0 and weight["c"]["dppo, A < 0"] == 1.7
assert push(partial(ipo, eps=0.1), *map(torch.tensor, ([0.99], [0.80]))) == 0  # a smaller eps drops b as well

# %% [markdown]
# GSPO cannot be drawn on this map: it has one ratio for the whole answer, the geometric mean.
# An answer of 100 tokens in which 99 did not move and one is token a has the ratio
# 100^(1/100) = 1.047. GSPO's band ends at 1.0004, so all 100 tokens are cut.

# %%
moved = torch.full((1, 100), 0.5, dtype=torch.float64).log()
still = moved.clone()
still[0, 50], moved[0, 50] = torch.tensor(TOKENS["a"], dtype=torch.float64).log()
ones = torch.ones_like(moved)
assert not gspo(moved, still, ones).kept.any()
assert ipo(moved, still, ones).kept.all() and icepop(moved, still, ones).kept.sum() == 99

# %% [markdown]
# ## 4. How hard, as the ratio grows
# The same six losses along two vertical lines of the map, for A = 1: a rare token and a common
# one. The dotted line is the plain importance weight pi/mu.


# %%
def draw_weights(ax, name, loss):
    ratio = torch.logspace(-2, 4, 601, dtype=torch.float64)
    ax.plot(ratio, ratio, ":", color=palette.INK, linewidth=0.8)
    for m, style, width in ((1e-4, "-", 1.6), (0.5, "--", 3.2)):
        x = ratio[ratio * m <= 1]
        y = push(loss, torch.full_like(x, m), x * m)
        ax.plot(x, y, style, color=COLOURS[name], linewidth=width, label=f"mu = {m:g}")
    ax.set(xscale="log", title=name, ylim=(-0.004, 2e4))
    ax.set_yscale("symlog", linthresh=0.01)
    ax.set_yticks([0, 0.01, 0.1, 1, 10, 100, 1000, 10000])
    ax.legend(frameon=False, loc="upper left"), tidy(ax)


# %%
picture = Picture(figsize=(WIDTH, 5.2))
for ax, (name, loss) in zip(picture.subplots(2, 3, sharex=True, sharey=True).flat, LOSSES.items(), strict=True):
    draw_weights(ax, name, loss)
picture.supxlabel("pi/mu (no unit)")
picture.supylabel("push on log pi for A = 1")
picture

# %% [markdown]
# IPO and DPPO let a rare token have a weight in the thousands. That is less wild than it
# looks: a token with mu = 0.0001 is met once in 10,000 draws. Averaged over the sampler, the
# kept weight is the kept mass of pi, which is at most 1. The largest kept ratio is
# 1 + eps/mu, which grows without end as mu falls; `max_ratio` ends it at 10,000.

# %%
rare = torch.tensor([1e-4], dtype=torch.float64)
assert push(ipo, rare, 2_999 * rare) > 2_998 and push(ipo, rare, 3_002 * rare) == 0  # 1 + 0.3 / 0.0001 = 3,001
generator = torch.Generator().manual_seed(0)
two = (3 * torch.randn(2, 1_000, 50, generator=generator, dtype=torch.float64)).softmax(-1)
mean_weight = (two[0] * push(ipo, two[0], two[1])).sum(-1)  # 1,000 pairs of distributions over 50 tokens
assert mean_weight.max() <= 1 + 1e-12
print(f"largest kept weight {push(ipo, two[0], two[1]).max():,.0f}, largest mean weight {mean_weight.max():.3f}")

# %% [markdown]
# ## 5. Twenty thousand tokens
# Now tokens that were really sampled. A policy over 1,000 tokens in 500 contexts, from nearly
# uniform to nearly certain. The sampler is the same policy with noise of 0.7 nats on every
# logit: a bad engine, though not an absurd one. IPO and IcePop drop about 2 percent each.
#
# Predict before you run: of the tokens that IPO drops, how many does IcePop drop too?


# %%
def mismatched_tokens(noise=0.7, contexts=500, draws=40, vocab=1_000):
    """log pi, log mu and A = +-1 of tokens that a noisy copy of a policy sampled, [contexts, draws] each."""
    g = torch.Generator().manual_seed(0)
    logits = torch.linspace(1, 6, contexts)[:, None] * torch.randn(contexts, vocab, generator=g)
    sampler = logits + noise * torch.randn(contexts, vocab, generator=g)
    tokens = torch.multinomial(sampler.softmax(-1), draws, replacement=True, generator=g)
    credit = 2.0 * torch.randint(0, 2, tokens.shape, generator=g) - 1
    return logits.log_softmax(-1).gather(-1, tokens), sampler.log_softmax(-1).gather(-1, tokens), credit


streams = mismatched_tokens()
sampled = streams[1].exp().flatten()
dropped = {name: ~loss(*streams).kept.flatten() for name, loss in LOSSES.items()}

# %%
share = pl.DataFrame([
    {"loss": name, "tokens dropped": gone.sum().item(), "percent": 100 * gone.double().mean().item(),
     "median mu of the dropped": sampled[gone].median().item(),
     "of these also dropped by ipo": (gone & dropped["ipo"]).sum().item()}
    for name, gone in dropped.items() if gone.any()
])  # fmt: skip
share

# %%
edges = torch.logspace(-5, 0, 16)
middles = (edges[1:] * edges[:-1]).sqrt()
place = torch.bucketize(sampled, edges) - 1
inside = {i: place == i for i in range(15) if (place == i).sum() >= 50}
picture = Picture(figsize=(WIDTH, 4.6))
top, bottom = picture.subplots(2, 1, sharex=True, height_ratios=(1, 2))
top.bar(middles, [(place == i).sum() for i in range(15)], width=edges.diff() * 0.95, color=palette.LINE)
for name, marker in (("ipo", "o"), ("icepop", "s"), ("dppo", "^")):
    rate = [100 * dropped[name][here].double().mean() for here in inside.values()]
    bottom.plot([middles[i] for i in inside], rate, f"{marker}-", color=COLOURS[name], label=name, markersize=4)
top.set(xscale="log", ylabel="tokens sampled")
bottom.set(xlabel="mu, probability when sampled", ylabel="dropped (percent of the bin)")
bottom.legend(frameon=False), tidy(top), tidy(bottom)
picture

# %% [markdown]
# Nearly none. IcePop's dropped tokens are spread over everything that is rare; IPO's all
# stand where mu or pi is large. Two trust regions with the same drop rate can train on
# different tokens, so a metric such as `rl/kept` does not tell you what a loss throws away.
#
# Nor does a count. Six of seven tokens that IcePop drops lie below its band: the sampler
# prefers what it overrates, so those are met most. Their weight is below 0.2. The few above the
# band carry most of the weight that is lost.

# %%
medians = {row["loss"]: row["median mu of the dropped"] for row in share.iter_rows(named=True)}
both = (dropped["ipo"] & dropped["icepop"]).sum()
assert medians["ipo"] > 10 * medians["icepop"]
assert both < 0.1 * dropped["ipo"].sum()
assert all(0.01 < dropped[name].double().mean() < 0.03 for name in ("ipo", "icepop"))
large = torch.maximum(sampled, streams[0].exp().flatten())
assert (large[dropped["ipo"]] > 0.3).all()
lost = (streams[0] - streams[1]).exp().flatten()[dropped["icepop"]]  # the ratios pi/mu that IcePop drops
assert (lost < 0.2).double().mean() > 0.85 and lost[lost < 0.2].sum() < 0.15 * lost.sum()

# %% [markdown]
# ## 6. What a dropped token must not do
# Two tokens in float32. The first has pi = 0.5 and mu = 0.4. The second has log pi = -1 and
# log mu = -100, so its ratio is e^99, more than float32 can hold. IPO drops the second: its
# probability moved by 0.37. The short way to write "dropped" is to multiply by 0.
#
# Predict before you run: what is the gradient of each token?

# %%
trainer = torch.tensor([0.5, 0.3679]).log().requires_grad_()
inference = torch.stack([torch.tensor(0.4).log(), torch.tensor(-100.0)])
kept = (trainer.detach().exp() - inference.exp()).abs() <= 0.3
by_product = -(kept * (trainer - inference).exp())  # A = 1
slope = torch.autograd.grad(by_product.sum(), trainer)[0]
assert kept.tolist() == [True, False] and by_product[1].isnan() and slope[1].isnan()
slope

# %%
out = ipo(trainer, inference, torch.ones(2))
slope = torch.autograd.grad(out.per_token.sum(), trainer)[0]
torch.testing.assert_close(slope, torch.tensor([-1.25, 0.0]))
assert slope[1] == 0 and out.per_token[1] == 0
slope

# %% [markdown]
# 0 * inf is NaN, and one NaN is a whole model of NaNs after the optimiser's step. So `ipo`
# selects first and exponentiates what is left: a dropped token gives exactly 0.
#
# A kept token can overflow as well: log pi = -2, log mu = -91 moved by 0.135 only, and its
# ratio is e^89. `ipo` lets it in with weight `max_ratio` and counts it in `clamped`. A plain
# `clamp` would make the gradient 0, and the token would look kept and learn nothing.

# %%
lone = torch.tensor([-2.0], requires_grad=True)
out = ipo(lone, torch.tensor([-91.0]), torch.ones(1))
slope = torch.autograd.grad(out.per_token.sum(), lone)[0].item()
assert out.kept.all() and out.metrics["clamped"].item() == 1 and abs(slope + 1e4) < 1e-2
assert torch.tensor(89.0).exp().isinf()
print(f"pushed by {-slope:,.0f} instead of e^89 = infinity in float32")

# %% [markdown]
# ## 7. What a dropped token takes away
# Importance weights repair the difference between sampler and trainer, on average: if every
# token has the credit 1, nothing should move. A trust region that drops tokens breaks the
# balance, and then a constant credit moves the policy. `oracle.drift` sums over all tokens
# that could be sampled; nothing is estimated.
#
# Five actions. Two of them have ratios of 5.26 and 150. TIS caps both ratios at 2, IcePop drops
# both actions, IPO keeps both. Predict before you run: which of the three drifts most?


# %%
def unweighted(trainer_logprobs, inference_logprobs, advantages):
    per_token = -advantages * trainer_logprobs
    return TokenLoss(per_token, torch.ones_like(per_token, dtype=torch.bool), {})


q = torch.tensor([0.6, 0.3, 0.08, 0.019, 0.001], dtype=torch.float64)  # the sampler
p = torch.tensor([0.35, 0.3, 0.1, 0.1, 0.15], dtype=torch.float64)  # the trainer
ARMS = {
    "no weights": unweighted, "tis": tis, "icepop": icepop, "ipo": ipo, "ipo, eps 0.1": partial(ipo, eps=0.1),
}  # fmt: skip
drifts = {name: oracle.drift(p.log(), q.log(), loss) for name, loss in ARMS.items()}
means = {name: (q * push(loss, q, p)).sum().item() for name, loss in ARMS.items()}
norms = {name: d.abs().sum().item() for name, d in drifts.items()}
rows = [{"loss": name, "drift, sum over actions": norms[name], "mean weight": means[name]} for name in ARMS]
pl.DataFrame(rows).with_columns(pl.col(pl.Float64).round(12))

# %%
picture = Picture(figsize=(WIDTH, 3.2))
ax = picture.subplots()
styles = {"no weights": (palette.LINE, ""), "tis": (COLOURS["tis"], ""), "icepop": (COLOURS["icepop"], "")}
styles |= {"ipo": (COLOURS["ipo"], ""), "ipo, eps 0.1": (palette.POSITIVE[1], "//")}
for i, (name, (colour, hatch)) in enumerate(styles.items()):
    ax.bar(torch.arange(5) + 0.16 * (i - 2), drifts[name], 0.15, color=colour, hatch=hatch, label=name)
ax.axhline(0, color=palette.INK, linewidth=0.8)
ax.set_xticks(range(5), [f"action {i}\npi/mu = {r:.3g}" for i, r in enumerate(p / q)])
ax.set(ylabel="expected push on the logit\nfor a credit of 1")
tidy(ax), ax.legend(frameon=False, ncols=2)
picture

# %%
expected = {  # name: (drift, mean weight)
    "no weights": (0.5, 1), "tis": (0.315, 0.79), "icepop": (0.375, 0.75), "ipo": (0, 1), "ipo, eps 0.1": (0.5, 0.5),
}  # fmt: skip
for name, (norm, mean) in expected.items():
    assert abs(norms[name] - norm) < 1e-12 and abs(means[name] - mean) < 1e-12, name

# %% [markdown]
# IcePop drops the two rare actions and the policy walks away from them, with no reason in any
# reward. IPO at 0.3 drops nothing here and so does not drift. At 0.1 it drops the first and
# the last and drifts as much as using no weights at all. Notebook 103 is about this drift and
# about taking it out.
#
# ## 8. Your own loss
# Between a bound on the ratio and a bound on the difference stands a bound on the difference of
# square roots: |sqrt(pi) - sqrt(mu)| <= 0.2. First the short way, with the fault of section 6
# in it. `testing.check_loss` runs the laws that every loss must keep and shows, for each that
# fails, the smallest case that breaks it.


# %%
def roots_by_product(trainer_logprobs, inference_logprobs, advantages):
    kept = ((trainer_logprobs.detach() / 2).exp() - (inference_logprobs / 2).exp()).abs() <= 0.2
    ratio = (trainer_logprobs - inference_logprobs).exp()
    return TokenLoss(-(kept * advantages * ratio), kept, {})


broken = testing.check_loss(roots_by_product)
broken

# %% [markdown]
# The same loss from the parts that `ipo` is made of: `pair` sets aside tokens that are masked
# or not finite, `kept_ratio` selects before it exponentiates and bounds what is left.


# %%
def roots(trainer_logprobs, inference_logprobs, advantages, *, mask=None, eps=0.2):
    streams = {"inference_logprobs": inference_logprobs, "advantages": advantages, "mask": mask}
    same_shape("roots", trainer_logprobs=trainer_logprobs, **streams)
    trainer, inference, live = pair(trainer_logprobs, inference_logprobs, mask)
    kept = live & (((trainer.detach() / 2).exp() - (inference / 2).exp()).abs() <= eps)
    ratio, clamped = kept_ratio(trainer - inference, trainer, kept, 1e4)
    return TokenLoss(-torch.where(kept, advantages, 0.0) * ratio, kept, {"clamped": clamped})


report = testing.check_loss(roots)
report

# %%
assert {"gradient", "finite", "shapes"} <= {finding.law for finding in broken.failed}
assert report.ok, report

# %% [markdown]
# `finite` is the fault of section 6. Two others are not about overflow: it sends a gradient into
# the sampler's log-probabilities, and it broadcasts streams of unequal length without a word.
#
# Its map, between the two that it stands between. It keeps a as IPO does, drops c as IPO does,
# and does not let a token rise from one in a million to 0.2, which IPO does.

# %%
picture = Picture(figsize=(WIDTH, 3.8))
axes = picture.subplots(1, 3, sharey=True)
for ax, (name, loss) in zip(axes, {"icepop": icepop, "roots": roots, "ipo": ipo}.items(), strict=True):
    draw_map(ax, name, loss)
axes[0].set(ylabel="pi, probability now")
axes[1].set(xlabel="mu, probability when the token was sampled")
picture.legend(handles=keys, loc="outside upper center", ncols=3, frameon=False)
picture

# %%
assert not (push(roots, *(torch.tensor([x], dtype=torch.float64) for x in TOKENS["c"]))).any()
assert push(roots, *(torch.tensor([x], dtype=torch.float64) for x in TOKENS["a"])) > 99
burst = torch.tensor([1e-6]), torch.tensor([0.2])
assert push(roots, *burst) == 0 and push(ipo, *burst) > 0

# %% [markdown]
# ## Try this
# - Draw the map of `partial(icepop, ratio_low=0.5, ratio_high=2.0)`. How much of section 5's
#   data does it drop?
# - Set `noise=0.4` in section 5. Which loss stops dropping first?
# - Train with your loss: `Runner(..., loss=roots)`, or look at it beside another one with
#   `runner.losses(batch, {"roots": roots, "ipo": ipo})`, as in notebook 201.
#
# Next: 103, the drift of section 7 over many steps and its cure; 105, the oracle that computed it.
