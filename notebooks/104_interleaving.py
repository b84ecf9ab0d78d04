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
# # 104 From model calls to training samples
# A rollout with tools is a list of model calls, and each call repeats the conversation so far.
# Training wants few long samples, with every token that the model wrote in exactly one of them,
# behind exactly the tokens that it was written after. You will see when calls merge, why they
# sometimes must not, what that costs, and where every token of a packed batch came from.
#
# Needs: CPU, no downloads, `prl[notebook]`. Runs in about 20 seconds.

# %%
import random
from itertools import count

import matplotlib
import numpy as np
import polars as pl
import torch
from matplotlib.patches import Rectangle

import prl

prl.check_types()  # shapes are checked from here on; call it before other imports of prl

# %%
from prl import frames, viz
from prl.advantages import group_norm, linear_length_penalty
from prl.errors import DataError
from prl.trajectories import interleave, observation_weights, pack, subagent_steps, token_counts
from prl.types import ROLES, Step
from prl.viz import palette
from prl.viz.picture import MONO, WIDTH, Picture, tidy

# %% [markdown]
# ## 1. A step is one call
# What went in, what came out, and the log-probability of each token that came out, exactly as
# the engine saw it: token ids, never text. Here a token is a word.

# %%
vocabulary = {}


def ids(text):
    return [vocabulary.setdefault(word, len(vocabulary)) for word in text.split()]


def word(token_id):
    return list(vocabulary)[token_id]


def call(prompt, completion, **settings):
    return Step(ids(prompt), ids(completion), [-0.5] * len(completion.split()), **settings)


# %%
call("system U1", "A1 <end>")

# %% [markdown]
# Streams that do not fit the tokens are refused. Nothing is padded.

# %%
try:
    Step(ids("system U1"), ids("A1 <end>"), [-0.5])
    raise AssertionError("accepted")
except DataError as error:
    print(error)

# %% [markdown]
# ## 2. A call that extends the last one
# Each of these calls has, as the beginning of its prompt, all that was said before. Predict:
# the engine read and wrote 2 + 2, 5 + 2 and 8 + 1 tokens. How long is the sample?

# %%
steps = [
    call("system U1", "A1 <end>"),
    call("system U1 A1 <end> U2", "A2 <end>"),
    call("system U1 A1 <end> U2 A2 <end> U3", "A3"),
]
(sample,) = interleave(steps, id="extends")
assert len(sample) == 9 and sum(len(s.prompt_ids) + len(s.completion_ids) for s in steps) == 20
sample

# %% [markdown]
# One drawing serves this notebook. A cell is a token: full colour if it trains, pale if it is
# context. The colour and the small number say which call brought it.

# %%
SHADES = [matplotlib.colors.to_hex(matplotlib.colormaps["viridis"](x)) for x in (0.05, 0.3, 0.55, 0.75, 0.9)]
PALE = [matplotlib.colors.to_hex(0.82 + 0.18 * np.array(matplotlib.colors.to_rgb(shade))) for shade in SHADES]


def cell(ax, x, y, text, shade, trained):
    fill = (SHADES if trained else PALE)[shade % len(SHADES)]
    ax.add_patch(Rectangle((x + 0.02, y + 0.06), 0.96, 0.62, facecolor=fill))
    size = min(7, 44 / len(text))
    style = {"ha": "center", "va": "center", "fontsize": size, "family": MONO, "parse_math": False}
    ax.text(x + 0.5, y + 0.38, text, color=palette.ink_on(fill), **style)


# %%
def lanes(samples, width=18):
    picture = Picture(figsize=(WIDTH, 0.75 + 0.5 * len(samples)))
    ax = picture.subplots()
    for y, s in enumerate(samples):
        for x in range(len(s)):
            cell(ax, x, y, word(s.token_ids[x]), s.step[x], s.loss_mask[x])
            if x == 0 or s.step[x] != s.step[x - 1]:
                ax.text(x + 0.05, y + 0.83, f"call {s.step[x]}", fontsize=7, va="center", color=palette.MUTED)
    ax.set(xlim=(0, max(width, *map(len, samples))), ylim=(len(samples), 0), xlabel="position in the sample (tokens)")
    ax.set_yticks(np.arange(len(samples)) + 0.4, [s.id for s in samples])
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    return picture


# %%
lanes([sample])

# %% [markdown]
# The same sample as rows. Every stream has an entry for every token; outside the mask it is 0.

# %%
frames.tokens(sample, lambda pair: word(pair[0])).select(
    "position", "text", "mask", "role", "step", "inference_logprob"
)

# %% [markdown]
# The law of this notebook, asserted for the examples below: each token that a trainable call
# wrote is trained exactly once, in order, and each sample is what its last call read and wrote.


# %%
def merged(name, steps, **settings):
    samples = interleave(steps, id=name, **settings)
    for k, step in enumerate(steps):
        trained = [s.token_ids[s.loss_mask & (s.step == k)] for s in samples]
        assert np.concatenate(trained).tolist() == (step.completion_ids.tolist() if step.trainable else [])
    for s in samples:
        last = steps[s.step.max()]
        assert s.token_ids.tolist() == [*last.prompt_ids, *last.completion_ids]
    return samples


assert merged("extends", steps)[0].token_ids.tolist() == sample.token_ids.tolist()

# %% [markdown]
# ## 3. A break
# Five calls; for the fourth somebody rewrote the history and left the thoughts t1 to t3 out.
# Predict the number of samples, and which tokens appear in two of them.

# %%
steps = [
    call("U1", "t1 A1"),
    call("U1 t1 A1 U2", "t2 A2"),
    call("U1 t1 A1 U2 t2 A2 U3", "t3 A3"),
    call("U1 A1 U2 A2 U3 A3 U4", "t4 A4"),
    call("U1 A1 U2 A2 U3 A3 U4 t4 A4 U5", "t5 A5"),
]
samples = merged("break", steps)
assert len(samples) == 2 and [set(s.step.tolist()) for s in samples] == [{0, 1, 2}, {3, 4}]
assert set(samples[0].token_ids) & set(samples[1].token_ids) == set(ids("U1 A1 U2 A2 U3 A3"))
lanes(samples)

# %% [markdown]
# A1 to A3 appear again in the second sample, pale: call 3 read them, so they are its context,
# and they were trained already. Calls 3 and 4 merge as before. A break costs one sample, no
# more.

# %% [markdown]
# ## 4. Why it breaks: thinking stripped from history
# The chat template of Qwen3 leaves `<think> R1 </think>` out when a new user turn comes. The
# reply was written in one form and is read back in another.

# %%
reply = "<think> R1 </think> A1 <end>"
first = call("<user> U1 <end> <asst>", reply)
template = call("<user> U1 <end> <asst> A1 <end> <user> U2 <end> <asst>", "<think> R2 </think> A2 <end>")
bridge = call(f"<user> U1 <end> <asst> {reply} <user> U2 <end> <asst>", "<think> R2 </think> A2 <end>")
by_template, by_bridge = merged("template", [first, template]), merged("bridge", [first, bridge])
assert [len(s) for s in by_template] == [9, 15] and [len(s) for s in by_bridge] == [18]
lanes([*by_template, *by_bridge])

# %% [markdown]
# Both ways to force one sample out of the template's calls are wrong. With R1 kept, A2 would be
# trained behind thoughts that its sampler never saw. Without R1, the thoughts would not be
# trained, and A1 would be trained as if it had been written without them. Two samples are
# right, and a renderer that bridges, that is appends to the tokens of the last call instead of
# rendering the history anew, gives one.
#
# ## 5. The same text, other tokens
# The model wrote `a` and `b`. The text was encoded again, and the tokenizer prefers `ab`.
# Predict: does the second call extend the first?

# %%
written, read = call("U1", "a b <end>"), call("U1 ab <end> U2", "A2 <end>")
again = read.prompt_ids[1 : 1 + 2]
assert "".join(map(word, written.completion_ids)) == "".join(map(word, again))  # the text agrees
samples = merged("retokenised", [written, read])
assert len(samples) == 2  # the tokens do not
lanes(samples)

# %% [markdown]
# Comparing texts would have merged them and trained `ab`, a token that nobody sampled, or given
# the log-probabilities of two tokens to one.
#
# ## 6. Fork, retry, cut
# - Fork: two branches go on from one reply. The reply trains in the first only.
# - Retry: the same prompt again. Nothing is extended, both answers train.
# - Cut: the reply hit the token limit, and the renderer closes it with an `<end>` of its own.
#   The model did not write that token, so it is context.
#
# A1 is drawn four times. Predict how often in full colour.

# %%
fork = [call("U1", "A1 call"), call("U1 A1 call t1", "B1"), call("U1 A1 call t2", "B2")]
retry = [call("U1", "A1 <end>"), call("U1", "C1 <end>")]
cut = [call("U1", "A1 and", truncated=True), call("U1 A1 and <end> U2", "A2 <end>")]
cases = {"fork": fork, "retry": retry, "cut": cut}
samples = [s for name, steps in cases.items() for s in merged(name, steps)]
assert [s.id for s in samples] == ["fork#0", "fork#1", "retry#0", "retry#1", "cut#0"]
full = [s.loss_mask[s.token_ids == ids("A1")[0]].tolist() for s in samples]
assert full == [[True], [False], [True], [], [True]]
added = samples[-1].token_ids.tolist().index(ids("<end>")[0])
assert not samples[-1].loss_mask[added] and samples[-1].loss_mask[-1]
lanes(samples)

# %% [markdown]
# ## 7. Two agents
# Calls of two agents arrive in turns. A call extends the longest open sample that is an exact
# prefix of its prompt, so each finds its own, whatever came in between.

# %%
steps = [
    call("plan U1", "A1", agent="planner"),
    call("code T1", "B1", agent="coder"),
    call("plan U1 A1 B1", "A2", agent="planner"),
    call("code T1 B1 T2", "B2", agent="coder"),
]
samples = merged("alternate", steps)
assert [sorted(set(s.step.tolist())) for s in samples] == [[0, 2], [1, 3]]
lanes(samples)

# %% [markdown]
# A hand-off is different: the coder gets the whole conversation of the planner and goes on from
# it. Predict: one sample or two?

# %%
handoff = [
    call("plan U1", "A1 <end>", agent="planner"),
    call("plan U1 A1 <end> now code", "B1 <end>", agent="coder"),
    call("plan U1 A1 <end> good", "A2 <end>", agent="planner"),
]
together, apart = merged("tokens", handoff), merged("by_agent", handoff, by_agent=True)
assert [sorted(set(s.step.tolist())) for s in together] == [[0, 1], [2]]
assert [sorted(set(s.step.tolist())) for s in apart] == [[0, 2], [1]]
lanes([*together, *apart])

# %% [markdown]
# By tokens alone the coder's call extends the planner's sample, and the planner's own next call
# finds its place taken. `by_agent=True` keeps agents apart; use it where each has its own
# reward. (In a rollout of prl every trace has one agent, so the question arises only for your
# own calls.)
#
# ## 8. Compaction
# The context is full: the model is asked for a summary and continues from it. A first attempt
# was rejected; its call is not trainable.

# %%
steps = [
    call("U1", "A1"),
    call("U1 A1 sum up!", "bad sum", trainable=False),
    call("U1 A1 sum up!", "good sum"),
    call("U1 good sum", "A2"),
    call("U1 good sum A2 U3", "A3"),
]
samples = merged("compact", steps)
assert [sorted(set(s.step.tolist())) for s in samples] == [[0, 1], [2], [3, 4]]
lanes(samples)

# %% [markdown]
# The summary trains, as any token that the policy sampled: in the sample of the call that wrote
# it. The rejected attempt is context there, and so never trains.
#
# ## 9. Any calls at all
# The law again, on 120 rollouts that no environment would produce: calls extend, fork, retry
# and rewrite at random, some are not trainable, some say nothing.


# %%
def any_calls(rng):
    steps, streams = [], [[0]]
    for _ in range(rng.randrange(1, 9)):
        prompt = list(rng.choice(streams))
        if rng.random() < 0.3:
            prompt[rng.randrange(len(prompt))] = rng.randrange(4)
        prompt += [rng.randrange(4) for _ in range(rng.randrange(3))]
        answer = [rng.randrange(4) for _ in range(rng.randrange(4))]
        steps.append(Step(prompt, answer, [-0.5] * len(answer), trainable=rng.random() < 0.8))
        streams.append(prompt + answer)
    return steps


# %%
rng = random.Random(0)
rollouts = [steps for steps in (any_calls(rng) for _ in range(120)) if interleave(steps)]
sizes = [(len(steps), len(merged("any", steps))) for steps in rollouts]
calls, samples = map(sum, zip(*sizes, strict=True))
print(f"{len(rollouts)} rollouts with something to train: {calls} calls, {samples} samples")

# %% [markdown]
# ## 10. What breaks cost
# T turns of 2 observed and 3 sampled tokens. Merged they are 5 T tokens. If no call extends
# another, turn k repeats everything before it, and the samples have 5 (1 + 2 + ... + T) tokens:
# (T + 1)/2 times as many. Predict the factor for 64 turns whose history is rewritten every 8
# turns.


# %%
def conversation(turns, every):
    steps, seen = [], []
    for turn in range(turns):
        if turn and turn % every == 0:
            seen = [100 + turn, *seen[1:]]  # as long as before, but another history
        seen = [*seen, 1, 2]
        steps.append(Step(seen, [3, 4, 5], [-0.5] * 3))
        seen = [*seen, 3, 4, 5]
    return steps


def trained_on(turns, every):
    return sum(map(len, interleave(conversation(turns, every))))


# %%
turns = [1, 2, 4, 8, 16, 32, 64]
print(f"64 turns, a break every 8: {trained_on(64, 8) / trained_on(64, 64)} times the tokens")

# %%
picture = Picture(figsize=(WIDTH, 3))
left, right = picture.subplots(1, 2)
for every, name, shade in ((64, "no break", 0), (8, "a break every 8 turns", 2), (1, "every call breaks", 3)):
    left.plot(turns, [trained_on(t, every) for t in turns], "o-", color=SHADES[shade], markersize=4, label=name)
left.set(xscale="log", yscale="log", xlabel="turns T", ylabel="length of all samples (tokens)")
left.legend(fontsize=8)
right.plot([1, 64], [1, 32.5], color=palette.INK, linewidth=0.8, label="(S + 1)/2")
for every, shade, size in ((8, 2, 9), (1, 3, 4)):
    long = [t for t in turns if t >= every]
    factors = [trained_on(t, every) / (5 * t) for t in long]
    right.plot([t // every for t in long], factors, "o", color=SHADES[shade], markersize=size, label=f"every {every}")
right.set(xlabel="samples S of the rollout", ylabel="tokens / tokens if merged (no unit)")
right.legend(fontsize=8)
tidy(left), tidy(right)
picture

# %% [markdown]
# Merged, the cost grows like T (slope 1 at the left); with every call broken, like T^2 (slope
# 2).
#
# The answer is 4.5. The factor depends on the number of samples S alone, (S + 1)/2, however
# many turns each of them holds: 64 turns with one break in the middle cost 1.5 times the
# tokens. (The rewritten history is as long as the old one here; a shorter one costs less.)

# %%
assert trained_on(16, 1) / trained_on(16, 16) == 8.5  # (T + 1)/2
for t in turns:
    assert trained_on(t, 64) == 5 * t and trained_on(t, 1) == 5 * t * (t + 1) / 2
    for every in (e for e in turns if e <= t):
        assert trained_on(t, every) == 5 * t * (t // every + 1) / 2
assert trained_on(64, 32) == 1.5 * trained_on(64, 64)

# %% [markdown]
# ## 11. What a rollout cost
# A length penalty counts tokens written, tokens read and calls. What a call reads anew is what
# its prompt has beyond the longest earlier call that it extends, so history is never counted
# twice.
#
# A main agent (r) calls a sub-agent (c), which calls another (g), and sums up when its context
# is full (s). The harness declares what followed from what.

# %%
CALLS = {  # name: (the call it extends, tokens read anew, tokens written)
    "r1": (None, 10, 5), "c1": (None, 20, 30), "c2": ("c1", 8, 12), "g1": (None, 7, 9),
    "s1": ("c2", 3, 15), "c3": (None, 16, 11), "r2": ("r1", 4, 6),
}  # fmt: skip
# %%
EDGES = [
    ("r1", "c1", "subagent_call"), ("c1", "c2", "continuation"), ("c2", "g1", "subagent_call"),
    ("g1", "s1", "subagent_return"), ("c2", "s1", "compaction_attempt"), ("s1", "c3", "compaction"),
    ("c3", "r2", "subagent_return"), ("r1", "r2", "continuation"),
]  # fmt: skip


# %%
def play(names):
    steps, streams, token = [], {None: []}, count()
    for name in names:
        extends, read, wrote = CALLS[name]
        prompt = [*streams[extends], *(next(token) for _ in range(read))]
        answer = [next(token) for _ in range(wrote)]
        steps.append(Step(prompt, answer, [-0.5] * wrote))
        streams[name] = prompt + answer
    return steps


# %% [markdown]
# Predict: which calls are the sub-agents'? Does r2, which reads the sub-agent's answer, belong
# to them?

# %%
names = list(CALLS)
inside = subagent_steps((names.index(a), names.index(b), kind) for a, b, kind in EDGES)
assert {names[k] for k in inside} == {"c1", "c2", "g1", "s1", "c3"}
at = {name: (x, {"r": 0, "c": 1, "s": 1, "g": 2}[name[0]]) for x, name in enumerate(names)}


def arrow(kind):
    line = ":" if kind == "subagent_return" else "-"
    return {"arrowstyle": "->", "linestyle": line, "shrinkA": 26, "shrinkB": 26}


# %%
picture = Picture(figsize=(WIDTH, 3.2))
ax = picture.subplots()
for a, b, kind in EDGES:
    ax.annotate("", at[b], at[a], arrowprops=arrow(kind))
    middle = [sum(xy) / 2 for xy in zip(at[a], at[b], strict=True)]
    shift = {"subagent_call": (38, 2), "subagent_return": (40, -8)}.get(kind, (0, 19))
    ax.annotate(kind, middle, shift, textcoords="offset points", ha="center", fontsize=7)
for k, (name, (_, read, wrote)) in enumerate(CALLS.items()):
    box = {"boxstyle": "round,pad=0.5", "facecolor": PALE[1] if k in inside else palette.PAPER}
    ax.text(*at[name], f"{name}\n{read} in, {wrote} out", ha="center", va="center", fontsize=7, bbox=box)
ax.set(xlim=(-0.6, 6.6), ylim=(2.5, -0.5), xlabel="order of the calls")
ax.set_yticks(range(3), ["main agent", "sub-agent", "its sub-agent"])
ax.tick_params(axis="y", length=0)
ax.spines[["top", "right", "left"]].set_visible(False)
picture

# %% [markdown]
# Shaded: sub-agents' calls. What follows along a solid arrow from such a call belongs to it,
# also after compaction; a return (dotted) leads out, so r2 is the main agent's.
# `linear-subagent` counts tokens of the shaded calls with a weight of their own; the number of
# turns does not change.

# %%
counted = {w: token_counts(play(names), subagents=inside, subagent_token_weight=w) for w in (1.0, 0.5, 0.0)}
assert counted == {1.0: (88, 68, 7), 0.5: (49.5, 41, 7), 0.0: (11, 14, 7)}
assert counted[0.0][:2] == token_counts(play(["r1", "r2"]))[:2]  # as if nobody had been asked
pl.DataFrame([{"weight of sub-agents": w, "written": o, "read": i, "calls": t} for w, (o, i, t) in counted.items()])

# %% [markdown]
# A group of three: the main agent alone succeeds, with sub-agents it succeeds, and with
# sub-agents it fails, in a harness that declares no edges. Predict who is paid more for
# success, under the default penalty and with sub-agents' tokens and turns free of charge.


# %%
def credit(weight, turns_weight):
    costs = [
        token_counts(play(["r1", "r2"])),
        token_counts(play(names), subagents=inside, subagent_token_weight=weight),
        token_counts(play(names)),
    ]
    written, read, turns = torch.tensor(costs, dtype=torch.float64).T
    rewards = torch.tensor([1.0, 1, 0], dtype=torch.float64)
    return group_norm(linear_length_penalty(rewards, written, read, turns, num_turns_weight=turns_weight)).tolist()


# %%
table = pl.DataFrame(
    {"rollout": ["alone", "delegates", "fails"], "linear": credit(1.0, 0.1), "free sub-agents": credit(0.0, 0.0)}
)
assert [round(a, 4) for a in table["linear"]] == [0.4976, 0.2512, -0.7488]
assert [round(a, 4) for a in table["free sub-agents"]] == [0.3996, 0.3996, -0.7992]
table.with_columns(pl.selectors.float().round(4))

# %% [markdown]
# ## 12. Learning from what the tool said
# ECHO adds a cross-entropy loss on tokens of the environment that are in the sample anyway. It
# needs to know who speaks: roles and message bodies come from the renderer, here one of five
# lines.


# %%
def render(*messages):
    tokens, roles, body = [], [], []
    for role, text in messages:
        piece = ids(f"<{role}> {text} <end>")
        tokens, roles = tokens + piece, roles + [ROLES.index(role)] * len(piece)
        body += [False, *[True] * (len(piece) - 2), False]
    return tokens, roles, body


# %%
def chat(*turns):
    steps, seen = [], ([], [], [])
    for messages, reply in turns:
        prompt, roles, body = (old + new for old, new in zip(seen, render(*messages), strict=True))
        answer, n = ids(reply), len(reply.split())
        steps.append(Step(prompt, answer, [-0.5] * n, prompt_roles=roles, prompt_content=body))
        seen = prompt + answer, roles + [ROLES.index("assistant")] * n, body + [True] * n
    return steps


# %% [markdown]
# The tool speaks twice, in 5 and in 3 tokens. Predict how many of these 8 are trained by
# `observation_weights(sample, {"tool": 0.1})`.

# %%
turns = [
    ([("user", "list the files")], "ls <end>"),
    ([("tool", "WARNING: a.txt b.txt")], "cat a.txt <end>"),
    ([("tool", "hello")], "it says hello <end>"),
]
(sample,) = merged("echo", chat(*turns))
weights = observation_weights(sample, {"tool": 0.1})
assert [word(i) for i in sample.token_ids[weights != 0]] == ["WARNING:", "a.txt", "b.txt", "hello"]
viz.token_html(sample.with_streams(ce_weights=weights), lambda i: word(i) + " ", stream="ce_weights")

# %% [markdown]
# Four: the bodies, without the scaffold around them. Boxed tokens are the policy's own and feed
# rl; the user's question comes before the first of them and is no observation. A filter may
# take more out:

# %%
no_warnings = [word(i) != "WARNING:" for i in sample.token_ids]
kept = observation_weights(sample, {"tool": 0.1}, keep=no_warnings)
assert [word(i) for i in sample.token_ids[kept != 0]] == ["a.txt", "b.txt", "hello"]
viz.token_html(sample.with_streams(ce_weights=kept), lambda i: word(i) + " ", stream="ce_weights")

# %% [markdown]
# Two consequences. A group in which all rollouts fail has no credit, yet its observations still
# train. And a break costs observations, not only tokens: predict what happens to a tool message
# that first appears in the prompt right after a break.

# %%
failed = sample.with_streams(advantages=np.zeros(len(sample)), ce_weights=kept)
assert {name: n.item() for name, n in pack([failed], max_tokens=64).counts.items()} == {"rl": 0, "ce": 3, "ref_kl": 0}

before, _, _ = chat(*turns)
_, after = chat((turns[0][0], "ls"), turns[1])  # the history now says `ls` without its <end>
first, second = merged("break", [before, after])
assert ids("a.txt")[0] in second.token_ids[~second.loss_mask]  # it is there, as context
assert not observation_weights(first, {"tool": 0.1}).any() and not observation_weights(second, {"tool": 0.1}).any()

# %% [markdown]
# It is never trained: in the new sample it stands before the first sampled token, and what
# stands there is taken for history.
#
# ## 13. Pack
# The trainer wants a few rectangles of tokens. Three answers to one question, one answer to
# another, and one without credit, which `pack` leaves out.


# %%
def paid(name, prompt, answer, advantage):
    (sample,) = merged(name, [call(prompt, answer)])
    return sample.with_streams(advantages=np.where(sample.loss_mask, advantage, 0.0))


# %%
question = "sys what is 2 + 2 ?"
samples = [
    paid("a", question, "4 <end>", 0.5),
    paid("b", question, "it is 5 <end>", -0.5),
    paid("c", question, "four <end>", 0.5),
    paid("d", "sys spell cat", "c a t <end>", 0.25),
    paid("silent", "sys hi", "hi <end>", 0.0),
]
layouts = {
    "a sample per row": pack(samples, max_tokens=64, share_prompts=False),
    "shared prompts (default)": pack(samples, max_tokens=64),
    "shared prompts, rows filled to 24 tokens": pack(samples, max_tokens=64, row_tokens=24),
}

# %% [markdown]
# Predict the number of cells of each layout; the longest row sets the width of all. Colour is
# the sample now, padding is grey.


# %%
def draw(ax, batch, title):
    (rows,) = batch.rows
    height, width = rows.sample.shape
    for y in range(height):
        for x in range(width):
            if rows.sample[y, x] >= 0:
                cell(ax, x, y, word(rows.token_ids[y, x]), rows.sample[y, x], rows.trained[y, x])
            else:
                ax.add_patch(Rectangle((x + 0.02, y + 0.06), 0.96, 0.62, facecolor="#eef0f3"))
    ax.set(xlim=(0, 24), ylim=(height, 0), ylabel="row", yticks=np.arange(height) + 0.4, yticklabels=range(height))
    ax.set_title(f"{title}: {rows.sample.numel()} cells, {batch.tokens} of them tokens", fontsize=9)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)


# %%
picture = Picture(figsize=(WIDTH, 4.6))
heights = [len(batch.rows[0].sample) for batch in layouts.values()]
axes = picture.subplots(3, 1, sharex=True, height_ratios=heights)
for ax, (title, batch) in zip(axes, layouts.items(), strict=True):
    draw(ax, batch, title)
axes[-1].set_xlabel("column (tokens)")
picture

# %% [markdown]
# A shared prompt is held once; each answer sees it and itself, not its neighbours, and counts
# its positions from the end of the prompt. Sharing saves tokens and makes rows longer: it is
# done only where that is cheaper. `where` says whose token a cell is, which is how an error
# names it.

# %%
batch = layouts["shared prompts (default)"]
print("row 0, column 10 holds token {1} of sample {0}".format(*batch.where(0, 10)))
wanted = {(s.id, t) for s in samples[:4] for t in np.flatnonzero(s.loss_mask)}
for batch in layouts.values():
    (rows,) = batch.rows
    found = [batch.where(row, col) for row, col in rows.trained.nonzero().tolist()]
    assert len(found) == len(wanted) and set(found) == wanted  # each trained token in exactly one cell
    assert batch.counts["rl"] == len(wanted) and "silent#0" not in {s.id for s in batch.samples}
    for row, col in rows.trained.nonzero().tolist():
        assert rows.positions[row, col] == batch.where(row, col)[1]

# %% [markdown]
# ## What to try next
# - Give the two branches of section 6 other advantages. Which of them pays the reply they
#   share?
# - Let `conversation` forget half of its history at each break. What replaces (S + 1)/2?
# - Ask `observation_weights` for `{"user": 0.05, "tool": 0.1}` on a chat with a second user
#   turn.
# - Pack with `max_tokens=24`: how are rows numbered over several micro-batches?
#
# Next: 101 gives the samples their credit; 201 trains on them.
