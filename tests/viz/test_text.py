"""What a token looks like: invisible characters, bytes of a character, word pieces."""

import pytest

from prl.viz import token_text
from prl.viz.text import printable, visible


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("word", "word"),
        (" a b", "\u00b7a\u00b7b"),
        ("\n\t\r", "\u23ce\u21e5\u240d"),
        ("", "\u2205"),
        ("\x00\x1b", "<U+0000><U+001B>"),
        ("\u202e\u200b\u2028\u00a0", "<U+202E><U+200B><U+2028><U+00A0>"),
        ("\ud800", "<U+D800>"),
        ("\u0301", "\u25cc\u0301"),
        ("\u65e5\u00e9\U0001f600", "\u65e5\u00e9\U0001f600"),
    ],
)
def test_visible(text, seen):
    assert visible(text) == seen


def test_printable_keeps_spaces():
    assert printable("a b\nc\u202e") == "a b<U+000A>c<U+202E>"


class Bytes:
    """One byte per id, as small models use; 256 is the end of a text."""

    def decode(self, ids):
        return "<end>" if ids == [256] else bytes(i % 256 for i in ids).decode("utf-8", errors="replace")


class Pieces:
    """A tokenizer with a vocabulary of pieces, as byte-level BPE or SentencePiece have it."""

    def __init__(self, *pieces):
        self.pieces = pieces

    def convert_ids_to_tokens(self, token_id):
        return self.pieces[token_id]

    def decode(self, ids):
        piece = self.pieces[ids[0]]
        whole = piece[0] in "\u2581\u0120\u65e5"
        return piece.replace("\u2581", "").replace("\u0120", " ") if whole else "\ufffd"


def test_a_byte_tokenizer_shows_the_bytes_of_a_split_character():
    text = token_text(Bytes())
    assert [text(i) for i in b"a \xe2\x82\n"] == ["a", " ", "\\xe2", "\\x82", "\n"]
    assert text(256) == "<end>"
    assert token_text(Bytes())(300) == ","  # 300 - 256


def test_an_undecodable_id_above_the_bytes_shows_the_id():
    class Odd:
        def decode(self, ids):
            return "\ufffd"

    assert token_text(Odd())(1000) == "<id 1000>"


def test_pieces_show_bytes_words_and_a_real_replacement_character():
    # byte-level BPE writes byte 0xE2 as U+00E2, 0x82 as U+0124, 0xC3 0xA9 (e acute) as U+00C3 U+00A9, space as U+0120
    pieces = ["\u00e2\u0124", "\u0120word", "\u2581word", "\u00c3\u00a9\u00e2", "\u00ef\u00bf\u00bd", "\u65e5"]
    text = token_text(Pieces(*pieces))
    assert text(0) == "\\xe2\\x82"
    assert text(1) == " word"
    assert text(2) == " word"
    assert text(3) == "\u00e9\\xe2"
    assert text(4) == "\ufffd"
    assert text(5) == "\u65e5"


def test_a_byte_level_tokenizer_of_the_library():
    tokenizers = pytest.importorskip("tokenizers")
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.Tokenizer(tokenizers.models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model)
    text = token_text(tokenizer)
    assert [text(i) for i in tokenizer.encode("a \u20ac\n")] == ["a", " ", "\\xe2", "\\x82", "\\xac", "\n"]
