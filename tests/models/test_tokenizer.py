"""The byte tokenizer: ids are bytes, and every text survives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from prl.models import byte_tokenizer

TOKENIZER = byte_tokenizer()
ROWS = {  # text: ids
    "plain": ("Hi ", [72, 105, 32]),
    "two bytes": ("\u00e9", [0xC3, 0xA9]),
    "four bytes": ("\U0001f600", [0xF0, 0x9F, 0x98, 0x80]),
    "control bytes": ("\x00\n\x7f", [0, 10, 127]),
    "control tokens": ("a<|im_start|><|im_end|><|endoftext|>", [97, 256, 257, 258]),
    "empty": ("", []),
}


@pytest.mark.parametrize(("text", "ids"), ROWS.values(), ids=ROWS)
def test_row(text, ids):
    assert TOKENIZER.encode(text) == ids
    assert TOKENIZER.decode(ids) == text


@given(st.text())
def test_ids_are_the_bytes_and_decode_gives_the_text_back(text):
    ids = TOKENIZER.encode(text, split_special_tokens=True)
    assert ids == list(text.encode())
    assert TOKENIZER.decode(ids) == text


def test_end_and_padding_differ():
    assert len(TOKENIZER) == 259
    assert (TOKENIZER.eos_token_id, TOKENIZER.pad_token_id) == (257, 258)


def test_bytes_that_are_not_utf8_and_ids_without_a_token_decode():
    assert TOKENIZER.decode([0xC3, 72]) == "\ufffdH"
    assert TOKENIZER.decode([72, 300, 511, 73]) == "HI"


def test_save_and_reload(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    for text, ids in ROWS.values():
        assert again.encode(text) == ids
    assert (again.eos_token_id, again.pad_token_id, again.chat_template) == (257, 258, TOKENIZER.chat_template)
    assert again.all_special_tokens == TOKENIZER.all_special_tokens
