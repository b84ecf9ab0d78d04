"""Cross-entropy per token."""

import torch

from prl.losses import ce


def test_value_gradient_and_mask():
    logprobs = torch.tensor([-0.5, -3.0, -2.0], requires_grad=True)
    out = ce(logprobs, mask=torch.tensor([True, False, True]))
    out.per_token.sum().backward()
    assert out.per_token.tolist() == [0.5, 0.0, 2.0]
    assert logprobs.grad.tolist() == [-1.0, 0.0, -1.0]
    assert (out.kept.tolist(), out.metrics) == ([True, False, True], {})


def test_without_a_mask_every_token_counts():
    out = ce(torch.tensor([[-0.5], [-1.5]]))
    assert (out.per_token.tolist(), out.kept.tolist()) == ([[0.5], [1.5]], [[True], [True]])
