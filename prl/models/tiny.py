"""A language model small enough to train on a CPU in seconds."""

from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from prl.errors import ConfigError
from prl.models.tokenizer import byte_tokenizer
from prl.policy import Policy
from prl.renderers import ChatML


def tiny(
    *,
    hidden: int = 128,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int = 2,
    intermediate: int = 256,
    vocab_size: int = 512,
    max_positions: int = 4096,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Policy:
    """A Qwen3 with random weights, the byte tokenizer and ChatML; 0.66M parameters at the defaults.

    The same seed gives the same weights, and torch's global random state stays as it
    was. Input and output embeddings are shared.

    Raises:
      ConfigError: hidden / heads is not an even whole number, kv_heads does not divide
        heads, or vocab_size is smaller than the tokenizer.
    """
    tokenizer: Any = byte_tokenizer()
    if hidden % (2 * heads):
        raise ConfigError(f"tiny: got hidden={hidden}, heads={heads}; need hidden to be a multiple of 2 * heads.")
    if heads % kv_heads:
        raise ConfigError(f"tiny: got heads={heads}, kv_heads={kv_heads}; need kv_heads to divide heads.")
    if vocab_size < (least := len(tokenizer)):
        raise ConfigError(f"tiny: got vocab_size={vocab_size}; need at least the {least} of the byte tokenizer.")
    config = Qwen3Config(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate_size=intermediate,
        vocab_size=vocab_size,
        max_position_embeddings=max_positions,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    # devices=[] and the CPU generator alone: torch.manual_seed would reseed every accelerator too.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module: Any = Qwen3ForCausalLM(config)
    return Policy(module.to(dtype), tokenizer, ChatML(tokenizer))
