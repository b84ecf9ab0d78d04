"""What a token looks like: every character that a reader cannot see gets a visible sign."""

import unicodedata
from collections.abc import Callable
from typing import Any

_SIGNS = {" ": "\u00b7", "\n": "\u23ce", "\t": "\u21e5", "\r": "\u240d"}
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}


def visible(text: str) -> str:
    """The text with whitespace and unprintable characters made visible.

    Space, newline, tab and return become a middle dot and arrows; other controls, invisible
    and direction-changing characters and lone surrogates become `<U+202E>`. A leading
    combining mark gets a dotted circle to sit on; an empty text becomes the empty-set sign.
    """
    if text.isascii() and text.isprintable() and text:
        return text.replace(" ", _SIGNS[" "])
    if not text:
        return "\u2205"
    shown = "".join(_SIGNS.get(char) or _sign(char) for char in text)
    return "\u25cc" + shown if unicodedata.category(text[0]).startswith("M") else shown


def printable(text: str) -> str:
    """The text with spaces as they are and every other invisible character as `<U+000A>`: for names and titles."""
    return text if text.isprintable() else "".join(char if char == " " else _sign(char) for char in text)


def _sign(char: str) -> str:
    return f"<U+{ord(char):04X}>" if unicodedata.category(char) in _HIDDEN else char


def token_text(tokenizer: Any) -> Callable[[int], str]:
    r"""A function from one token id to its text, for `token_html` and `group_advantages`.

    Works with Hugging Face tokenizers and with any object that has `decode(ids)`. A token
    that is only a part of a UTF-8 character shows its bytes, as `\xe2`; the space in front
    of a SentencePiece word is kept. Without `convert_ids_to_tokens` an undecodable id below
    256 is taken for the byte itself.
    """
    pieces = getattr(tokenizer, "convert_ids_to_tokens", None)

    def text_of(token_id: int) -> str:
        text = tokenizer.decode([token_id])
        piece = pieces(token_id) if pieces else None
        if piece and piece.startswith("\u2581"):
            return piece.replace("\u2581", " ")
        if "\ufffd" not in text:
            return text
        if piece is not None:
            return _piece_text(piece)
        return f"\\x{token_id:02x}" if token_id < 256 else f"<id {token_id}>"

    return text_of


def _piece_text(piece: str) -> str:
    """A byte-level BPE piece as text, with the bytes that are no whole character written out."""
    byte_of = _byte_of_char()
    if all(char in byte_of for char in piece):
        return bytes(byte_of[char] for char in piece).decode("utf-8", errors="backslashreplace")
    return piece


def _byte_of_char() -> dict[str, int]:
    """The alphabet of byte-level BPE: printable Latin-1 stands for itself, the other bytes follow from U+0100."""
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(0x100 + i): byte for i, byte in enumerate(moved)}
