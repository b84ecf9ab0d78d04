"""Packing: layouts by hand, then loss and gradient equal one plain sample at a time, whatever the layout."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from prl.config import IPO
from prl.errors import DataError
from prl.models import tiny
from prl.trajectories import drop_zero_signal, pack
from prl.types import TrainingSample, supervised
from tests.helpers import run_learn

SMALL = dict(hidden=32, layers=2, heads=4, kv_heads=2, intermediate=48, vocab_size=260, max_positions=128)
COMPONENTS = ("rl", "ce", "ref_kl")


class Recorder(torch.optim.SGD):
    """An optimiser that keeps the gradient and changes nothing."""

    def step(self, closure=None):
        self.gradient = flat(p.grad for group in self.param_groups for p in group["params"])


def flat(gradients):
    return torch.cat([g.detach().double().flatten() for g in gradients])


def norm(module, x):
    """RMSNorm in the model's own precision: transformers' goes through float32, and so does its gradient."""
    return module.weight * x * (x.square().mean(-1, keepdim=True) + module.variance_epsilon).rsqrt()


def policy(dtype):
    """Weights large enough that every position and every attended token matters."""
    out = tiny(**SMALL, dtype=dtype)
    for module in out.modules():
        if isinstance(module, Qwen3RMSNorm):
            module.forward = partial(norm, module)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in out.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * (0.3 if p.ndim > 1 else 0.2))
    return out


def sample(id, prompt, completion, rng, *, component="rl", temperature=1.0, extra=()):
    """One trained turn; `extra` adds observation tokens with a ce weight and a second turn after them."""
    ids = [*prompt, *completion, *extra, *(completion if extra else ())]
    n, p, c = len(ids), len(prompt), len(completion)
    mask = np.zeros(n, bool)
    mask[p : p + c] = True
    if extra:
        mask[n - c :] = True
    logprobs = np.where(mask, -rng.uniform(0.3, 8, n), 0)
    streams = {"temperatures": np.where(mask, temperature, 1.0)}
    if component == "rl":
        streams |= {"advantages": np.where(mask, rng.normal(), 0)}
    elif component == "ref_kl":
        streams |= {"ref_logprobs": np.where(mask, -rng.uniform(0.3, 8, n), 0), "ref_kl_weights": mask}
    if extra:
        echo = np.zeros(n)
        echo[p + c : p + c + len(extra)] = 0.1
        streams |= {"ce_weights": echo}
    return TrainingSample(id, ids, mask, logprobs, **streams)


def mixed_samples():
    """Two groups with shared prompts, one partly shared, ce, ref_kl, overlap, fractions, silent tokens: 14 samples."""
    rng = np.random.default_rng(0)

    def tokens(n):
        return rng.integers(1, 250, n).tolist()

    a, b, c = tokens(9), tokens(6), tokens(5)
    samples = [sample(f"a{i}", a, tokens(n), rng) for i, n in enumerate((4, 1, 7))]
    samples += [sample(f"a{i}", a, tokens(3), rng, component="ref_kl", temperature=0.7) for i in (3, 4)]
    samples += [sample(f"b{i}", [*b, *tokens(2)], tokens(3), rng, extra=tokens(i)) for i in (0, 1, 3)]
    samples += [supervised([*b, 7], tokens(4), id="taught"), sample("alone", tokens(2), tokens(12), rng)]
    samples += [sample(f"c{i}", c, tokens(4), rng, temperature=1.5) for i in range(3)]
    both = samples[3].with_streams(advantages=np.where(samples[3].loss_mask, 0.5, 0), ce_weights=samples[3].loss_mask)
    weights = np.where(samples[-1].loss_mask, rng.uniform(0.1, 0.9, len(samples[-1])), 0)
    silent = samples[0].with_streams(advantages=np.where(np.arange(len(samples[0])) == 10, 0.7, 0))
    return [silent, *samples[1:3], both, *samples[4:-1], samples[-1].with_streams(rl_weights=weights), ignored(a)]


def ignored(prompt):
    return TrainingSample("ignored", [*prompt, 5], [False] * len(prompt) + [True], [0.0] * len(prompt) + [-1.0])


def reference(model, samples):
    """(loss, gradient) by the formulas, one sample at a time, nothing packed."""
    dtype = next(model.parameters()).dtype
    sums, counts = dict.fromkeys(COMPONENTS, 0.0), dict.fromkeys(COMPONENTS, 0.0)

    def stream(values, n):
        return torch.zeros(n, dtype=dtype) if values is None else torch.tensor(np.array(values), dtype=dtype)

    for s in samples:
        n, ids = len(s), torch.tensor(np.array(s.token_ids)).long()
        temperature = torch.ones(n, dtype=dtype) if s.temperatures is None else stream(s.temperatures, n)
        logits = model.module(input_ids=ids[None]).logits[0, :-1] / temperature[1:, None]
        lp = logits.log_softmax(-1).gather(-1, ids[1:, None]).squeeze(-1)
        mu, ref, credit = (stream(v, n)[1:] for v in (s.inference_logprobs, s.ref_logprobs, s.advantages))
        move, ratio = (lp.exp() - mu.exp()).detach(), (lp - mu).exp()
        w = {c: stream(s.weights(c), n)[1:] for c in COMPONENTS}
        w["rl"] = w["rl"] * (credit != 0)
        sums["rl"] = sums["rl"] - (w["rl"] * (move.abs() <= 0.3) * credit * ratio).sum()
        sums["ce"] = sums["ce"] - (w["ce"] * lp).sum()
        sums["ref_kl"] = sums["ref_kl"] - (w["ref_kl"] * (move >= -0.2) * (ref - lp).detach() * ratio).sum()
        counts["rl"] += w["rl"].sum()
        counts["ce"] += (w["ce"] != 0).sum()
        counts["ref_kl"] += (w["ref_kl"] != 0).sum()
    loss = sum(sums[c] / counts[c] for c in COMPONENTS)
    return loss.item(), flat(torch.autograd.grad(loss, list(model.parameters())))


SAMPLES = mixed_samples()
MODELS = {dtype: policy(dtype) for dtype in (torch.float64, torch.float32)}
REFERENCE = {dtype: reference(model, SAMPLES) for dtype, model in MODELS.items()}
LAYOUTS = {
    "one micro-batch of padded rows": dict(max_tokens=10**4, share_prompts=False),
    "one sample a micro-batch": dict(max_tokens=17, share_prompts=False),
    "shared prompts": dict(max_tokens=10**4),
    "shared prompts, cut small": dict(max_tokens=30),
    "block-diagonal": dict(max_tokens=10**4, row_tokens=40, share_prompts=False),
    "block-diagonal, shared prompts": dict(max_tokens=10**4, row_tokens=60),
    "block-diagonal, shared prompts, cut small": dict(max_tokens=64, row_tokens=64),
    "all in one row": dict(max_tokens=10**4, row_tokens=10**4),
}


@pytest.fixture(autouse=True)
def one_thread():
    """These tensors are too small to share: waiting for a second thread takes longer than the work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(
    ("dtype", "tolerance", "shuffled"),
    [(torch.float64, 1e-12, False), (torch.float64, 1e-12, True), (torch.float32, 1e-6, True)],
)
def test_loss_and_gradient_do_not_depend_on_the_layout(layout, dtype, tolerance, shuffled):
    samples = [SAMPLES[i] for i in np.random.default_rng(3).permutation(len(SAMPLES))] if shuffled else SAMPLES
    model, (loss, gradient) = MODELS[dtype], REFERENCE[dtype]
    recorder = Recorder(model.parameters(), lr=0.0)
    got = run_learn(model, recorder, pack(samples, **layout), IPO(), float("inf"))
    assert got.loss == pytest.approx(loss, rel=tolerance)
    assert (recorder.gradient - gradient).norm() <= tolerance * gradient.norm()
    assert got.grad_norm == pytest.approx(gradient.norm().item(), rel=1e-5)


def test_the_samples_exercise_what_they_should():
    kept = drop_zero_signal(SAMPLES)
    assert {s.id for s in SAMPLES} - {s.id for s in kept} == {"ignored"}
    assert all(sum(s.members(c).any() for s in kept) >= 2 for c in COMPONENTS)
    model = MODELS[torch.float64]
    learned = run_learn(model, Recorder(model.parameters()), pack(SAMPLES, max_tokens=99), IPO(), 1.0)
    assert 0 < learned.metrics["rl/kept"] < 1 and 0 < learned.metrics["ref_kl/kept"] < 1
    assert all(abs(term) > 1e-3 for term in learned.terms.values())


def test_each_position_and_each_attended_token_matters():
    # So that a wrong mask or position cannot hide: another first token moves the last log-probability.
    ids = torch.arange(1, 9)[None]
    other = ids.clone()
    other[0, 0] = 77
    module, gap = MODELS[torch.float64].module, torch.tensor([[0, 1, 2, 3, 5, 6, 7, 8]])
    with torch.no_grad():
        plain = module(input_ids=ids).logits[0, -1]
        changed = module(input_ids=other).logits[0, -1]
        moved = module(input_ids=ids, position_ids=gap).logits[0, -1]
    assert (plain - changed).abs().max() > 1e-3 and (plain - moved).abs().max() > 1e-3


def rl(id, prompt, completion):
    mask = np.array([0] * len(prompt) + [1] * len(completion))
    return TrainingSample(id, [*prompt, *completion], mask, -1.0 * mask, advantages=mask)


def test_a_shared_prompt_by_hand():
    (rows,) = pack([rl("x", [1, 2, 3], [4, 5]), rl("y", [1, 2, 3], [6])], max_tokens=99).rows
    assert rows.token_ids.tolist() == [[1, 2, 3, 4, 5, 6]]
    assert rows.positions.tolist() == [[0, 1, 2, 3, 4, 3]]  # y goes on where the prompt ended
    assert rows.source.tolist() == [[0, 0, 1, 2, 3, 2]]  # the prompt's end predicts 4 and 6
    assert rows.segment.tolist() == [[0, 0, 0, 1, 1, 2]]
    assert rows.parent.tolist() == [[-1, -1, -1, 0, 0, 0]]
    assert rows.sample.tolist() == [[0, 0, 0, 0, 0, 1]]
    assert rows.token.tolist() == [[0, 1, 2, 3, 4, 3]]
    assert rows.trained.tolist() == [[False, False, False, True, True, True]]
    assert not rows.one_sample_per_row


def test_a_partly_shared_prompt_by_hand():
    (rows,) = pack([rl("x", [1, 2, 3], [4]), rl("y", [1, 2, 9], [4])], max_tokens=99).rows
    assert rows.token_ids.tolist() == [[1, 2, 3, 4, 9, 4]]
    assert rows.positions.tolist() == [[0, 1, 2, 3, 2, 3]]
    assert rows.source.tolist() == [[0, 0, 1, 2, 1, 4]]
    assert rows.segment.tolist() == [[0, 0, 1, 1, 2, 2]]


def test_block_diagonal_rows_by_hand():
    samples = [rl("x", [1], [2]), rl("y", [3], [4, 5])]
    (rows,) = pack(samples, max_tokens=99, row_tokens=6, share_prompts=False).rows
    assert rows.token_ids.tolist() == [[3, 4, 5, 1, 2]]  # longest first
    assert rows.positions.tolist() == [[0, 1, 2, 0, 1]]
    assert rows.segment.tolist() == [[0, 0, 0, 1, 1]]
    assert rows.parent.tolist() == [[-1] * 5]
    assert rows.source[0, [1, 2, 4]].tolist() == [0, 1, 3]


def test_padding_by_hand():
    (rows,) = pack([rl("x", [1], [2]), rl("y", [3], [4, 5])], max_tokens=99).rows
    assert rows.token_ids.tolist() == [[3, 4, 5], [1, 2, 0]]
    assert rows.segment.tolist() == [[0, 0, 0], [0, 0, -1]]
    assert rows.sample.tolist() == [[1, 1, 1], [0, 0, -1]]
    assert rows.one_sample_per_row


def test_tokens_that_another_sample_trains_are_not_shared():
    samples = [rl("x", [1, 2], [3, 4]), rl("y", [1, 2, 3], [5])]
    assert pack(samples, max_tokens=99).rows[0].token_ids.tolist() == [[1, 2, 3, 4, 3, 5]]
    assert pack(samples[::-1], max_tokens=99).rows[0].token_ids.tolist() == [[1, 2, 3, 5, 3, 4]]


def test_nothing_is_shared_where_attention_would_cost_more():
    # One shared token of 400 saves nothing, and 799^2 is twice 2 * 400^2.
    (rows,) = pack([rl(id, [1], [token] * 399) for id, token in (("x", 2), ("y", 3))], max_tokens=999).rows
    assert rows.token_ids.shape == (2, 400) and rows.one_sample_per_row


def test_n_is_counted_over_the_whole_batch_without_silent_tokens():
    batch = pack(SAMPLES, max_tokens=20)
    rl_weight = sum(float(s.weights("rl")[s.advantages != 0].sum()) for s in SAMPLES if s.advantages is not None)
    assert len(batch.rows) > 5
    assert batch.counts["rl"].item() == pytest.approx(rl_weight, rel=1e-7)
    for name in ("ce", "ref_kl"):
        assert batch.counts[name].item() == sum(int(s.members(name).sum()) for s in SAMPLES)


def test_an_empty_batch():
    batch = pack([ignored([1, 2])], max_tokens=9, step=4)
    assert (batch.rows, batch.samples, batch.step, batch.tokens) == ((), (), 4, 0)
    assert {name: n.item() for name, n in batch.counts.items()} == dict.fromkeys(COMPONENTS, 0.0)


def test_a_sample_that_is_too_long_is_named():
    samples = [rl("short", [1], [2]), rl("e/t@0/0/agent#1", [1, 2, 3], [4])]
    with pytest.raises(DataError, match="sample 'e/t@0/0/agent#1' has 4 tokens, max_tokens is 3. Nothing is truncated"):
        pack(samples, max_tokens=3)
    assert pack(samples, max_tokens=4, row_tokens=2).tokens == 6  # longer than a row has the row to itself


@st.composite
def batches(draw):
    """Samples with few distinct tokens, so that prompts share much, and settings."""
    tokens = st.lists(st.integers(1, 2), min_size=1, max_size=6)
    samples = [rl(f"s{i}", draw(tokens), draw(tokens)) for i in range(draw(st.integers(1, 8)))]
    row_tokens = draw(st.none() | st.integers(1, 60))
    return samples, dict(max_tokens=draw(st.integers(12, 60)), row_tokens=row_tokens, share_prompts=draw(st.booleans()))


@settings(deadline=None, max_examples=40)
@given(batches())
def test_every_trained_token_has_one_cell_and_every_cell_a_name(batch):
    samples, layout = batch
    packed, trained, row = pack(samples, **layout), [], 0
    by_id = {s.id: s for s in samples}
    for rows in packed.rows:
        assert rows.token_ids.numel() <= layout["max_tokens"]
        for r in range(len(rows.token_ids)):
            for col in range(rows.token_ids.shape[1]):
                if rows.segment[r, col] < 0:
                    with pytest.raises(IndexError, match=f"row {row}, column {col} is padding or does not exist"):
                        packed.where(row, col)
                    continue
                id, token = packed.where(row, col)
                assert by_id[id].token_ids[token] == rows.token_ids[r, col]
                assert rows.positions[r, col] == token
                if token > 0:  # the cell that predicts it holds the token before
                    assert by_id[id].token_ids[token - 1] == rows.token_ids[r, rows.source[r, col]]
                    assert rows.positions[r, rows.source[r, col]] == token - 1
                if rows.trained[r, col]:
                    trained.append((id, token))
            row += 1
    assert sorted(trained) == sorted((s.id, int(t)) for s in samples for t in np.flatnonzero(s.loss_mask))


@settings(deadline=None)
@given(batches())
def test_what_a_cell_sees_is_its_own_sample_up_to_itself(batch):
    samples, layout = batch
    packed = pack(samples, **layout)
    for rows in packed.rows:
        for segment, parent, positions in zip(rows.segment, rows.parent, rows.positions, strict=True):
            for col in range(int((segment >= 0).sum())):
                before = torch.arange(len(segment)) <= col
                seen = before & ((segment == segment[col]) | (segment == parent[col]))
                assert positions[seen].tolist() == list(range(int(positions[col]) + 1))


def test_sharing_saves_cells():
    prompt = list(range(1, 31))
    samples = [rl(f"s{i}", prompt, [40 + i]) for i in range(8)]
    assert pack(samples, max_tokens=999).tokens == 30 + 8
    assert pack(samples, max_tokens=999, share_prompts=False).tokens == 8 * 31
