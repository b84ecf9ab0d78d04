"""Exact answers on small problems: expected updates by enumeration, weights of w(p), values of whole games.

A policy is a tensor of logits: [vocab] for one token, [nodes, vocab] for a tree of them.
"""

from prl.oracle import kuhn, tic_tac_toe
from prl.oracle.binary import expect, weight
from prl.oracle.expected import drift, expected_update, reinforce
from prl.oracle.tree import distribution, gradient_of, node, sequences, token_logprobs, vocab_logprobs

__all__ = [
    "distribution", "drift", "expect", "expected_update", "gradient_of", "kuhn", "node", "reinforce", "sequences",
    "tic_tac_toe", "token_logprobs", "vocab_logprobs", "weight",
]  # fmt: skip
