"""Token HTML: what is shown, what is escaped, the switch, the scale, the size."""

import re
import subprocess
import sys
import time
from html.parser import HTMLParser

import numpy as np
import pytest

from prl.errors import DataError
from prl.types import Episode, Group, Task
from prl.viz import Html, token_html
from prl.viz.tokens_css import STREAMS
from prl.viz.tokens_html import scale_steps
from tests.viz.cases import decode, full_sample, group, hand_made, sample, scored_group, trace

ATTRIBUTES = {
    "form": {"method", "class"},
    "style": set(),
    "div": {"class"},
    "input": {"type", "name", "class", "aria-label", "checked"},
    "b": {"class"},
    "i": {"tabindex", "class"} | {f"data-{letter}" for letter in "piabcdefghsm"},
    "details": {"open"},
    "summary": set(),
}

HOSTILE = [
    "<script>alert(1)</script>", "</script><script>alert(1)</script>", "</style><script>alert(1)</script>",
    "<style>*{display:none}</style>", "<img src=x onerror=alert(1)>", "<svg/onload=alert(1)>", "</i></div></form><h1>x",
    "<!--", "-->", "<![CDATA[", "]]>", "<?php", "<!doctype html>", '" onmouseover="alert(1)', "' onfocus='alert(1)",
    "` onclick=`alert(1)", " autofocus onfocus=alert(1) x=", ">", "<", "&", "&lt;script&gt;", "&#60;b&#62;", "&quot;",
    "<a href=javascript:alert(1)>x</a>", "<iframe srcdoc='<b>'>", "<form action=//x><input name=s>", "<base href=//x>",
    "<plaintext>", "<textarea>", "</title>", "\x00<b>", "\u202e<b>evil", "\ud800<b>", "{{7*7}}", "${alert(1)}",
    "<i data-p=9 tabindex=0>", "\n<b>", "\u2028<b>",
]  # fmt: skip


class Parsed(HTMLParser):
    """Elements with their attributes, the text of each `i`, all text outside style."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.tokens, self.words, self.css, self.open = [], [], [], "", []
        self.feed(str(html))
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag != "input":
            self.open.append(tag)
        if tag == "i":
            self.tokens.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_comment(self, data):
        raise AssertionError(f"comment {data!r}")

    handle_decl = handle_pi = unknown_decl = handle_comment

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            self.css += data
        elif self.open and self.open[-1] == "i":
            self.tokens[-1] += data
        self.words.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]

    @property
    def text(self):
        return "".join(self.words).replace(self.css, "")


def shown(*args, **kwargs):
    page = Parsed(token_html(*args, **kwargs))
    assert page.open == []
    for tag, attrs in page.elements:
        assert set(attrs) <= ATTRIBUTES[tag], (tag, attrs)
    return page


def test_every_token_shows_id_position_role_mask_and_values():
    full = sample(roles=[2, 2, 3, 3], ref_logprobs=[0, 0, -0.5, -1], step=[0, 0, 1, 1], version=[7, 7, 70000, 7])
    page = shown(full, decode)
    third = page.all("i")[2]
    assert third == {
        "tabindex": "0", "class": "t r3 a3 b-1 c-3 h5", "data-p": "2", "data-i": "5", "data-a": "0.5",  # 3 of 5 steps
        "data-b": "-0.25", "data-c": "-0.5", "data-h": "70000", "data-s": "1",
    }  # fmt: skip
    assert page.all("i")[0]["class"] == "c r2 h1"
    tooltip = re.search(r":focus::after\{content:(.*?)\}", page.css).group(1)
    for name in "piabchs":
        assert f"attr(data-{name})" in tooltip
    assert "attr(data-d)" not in tooltip
    assert "var(--r," in tooltip and '.prl .r3{--r:"assistant"}' in page.css


def test_tokens_are_visible():
    page = shown(hand_made("s", range(11), [False] + [True] * 10), decode)
    assert page.tokens == [
        "What", "\u00b7is", "\u00b71+1", "?", "\u23ce", "\u00b7two", "\u00b7three", "\u21e5",
        "<|end|>", "\ufffd", "\u2205",
    ]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_stays_text(text, tmp_path):
    bad = sample(text, roles=[2, 2, 3, 3])
    calm = shown(sample("calm", roles=[2, 2, 3, 3]), lambda i: "word")
    page = shown(bad, lambda i: text)
    assert page.elements == calm.elements
    assert page.css == calm.css
    hostile_group = Group(text, text, Task(text, text), (Episode(text, (trace(text, 1.0, (bad,), agent=text),)),))
    failed = group(trace("t", 1.0, (sample("calm"),)), errors=["failure"])
    evil = Group(text, text, Task(text, text), (*hostile_group.episodes, Episode(text, (), text)))
    page = shown(evil, lambda i: text, title=text)
    calm = shown(failed, lambda i: "word", title="calm")
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in calm.elements]
    saved = token_html(evil, lambda i: text).save(tmp_path / "page.html").read_text("utf-8")
    assert "<script" not in saved and saved.count("</style>") == 1 and saved.count("<title>") == 1


def test_there_is_one_radio_per_stream_that_some_sample_has():
    assert [r["aria-label"] for r in shown(full_sample(8, 2), decode).all("input")] == list(STREAMS)
    radios = shown(sample(), decode, stream="inference_logprobs").all("input")
    assert [r["aria-label"] for r in radios] == ["advantages", "inference_logprobs"]
    assert ["checked" in r for r in radios] == [False, True]
    assert {(r["type"], r["name"]) for r in radios} == {("radio", "stream")}


def test_the_switch_is_css_with_a_rule_per_stream_and_step():
    page = shown(sample(), decode)
    for letter in "abcdefgh":
        for step in (-5, -1, 1, 5):
            assert f".prl .k{letter}:checked~.b .{letter}{step}" in page.css
    assert "prefers-color-scheme:dark" in page.css
    assert "solid var(--ink)" in page.css and "dotted var(--ink)" in page.css
    assert page.css.count("{") == page.css.count("}")
    assert "http" not in page.css and "@import" not in page.css and "url(" not in page.css


def test_a_sample_that_is_not_scored_says_so():
    page = shown(sample(advantages=None), decode)
    assert "advantages: not set" in page.text
    assert not any("checked" in r for r in page.all("input"))


def test_a_sample_without_streams_shows_its_tokens():
    page = shown(hand_made("bare", [0, 1], [False, False]), decode)
    assert page.tokens == ["What", "\u00b7is"]
    assert page.all("input") == []


def test_an_unknown_stream_is_refused():
    with pytest.raises(DataError, match="token_html: stream is 'advantage'; need one of advantages, infer"):
        token_html(sample(), decode, stream="advantage")


def test_a_group_has_a_row_per_trace_and_per_failed_episode():
    traced = group(
        trace("t0", 1.0, (sample("t0#0"),)),
        trace("t1", float("nan"), (sample("t1#0", advantages=None),), valid=False),
        trace("t2", 0.5, (), trainable=False),
        errors=["Traceback (most recent call last):\n  File x\nTimeoutError: 10 s"],
    )
    page = shown(traced, decode)
    assert sum(a.get("class") == "r" for a in page.all("div")) == 4
    assert "sums, task 1+1: 1 rollouts, mean reward 1" in page.text
    assert "t0  |  agent  |  reward 1  |  2 tokens in the mask" in page.text
    assert "not valid" in page.text and "not trainable" in page.text
    assert "failed0: failed: TimeoutError: 10 s" in page.text
    assert page.all("i")[4]["data-a"] == "none"  # the second trace is not scored


def test_an_empty_group_and_an_empty_sample_work():
    assert "no rollout takes part" in shown(group(), decode).text
    assert shown(hand_made("s", [], []), decode).tokens == []


def test_prompts_are_folded_in_a_group_and_open_in_a_sample():
    assert shown(sample(), decode).all("details") == [{"open": None}]
    assert shown(scored_group(), decode).all("details") == [{}] * 3


def test_the_scale_is_one_for_all_samples_of_a_group():
    tokens = shown(scored_group(), decode).all("i")  # largest |advantage| is 2.0, in the second rollout
    steps = [next((c for c in t["class"].split() if c.startswith("a")), "0") for t in tokens]
    assert steps == ["0", "0", "a2", "a2", "0", "0", "a-2", "a-5", "0", "0", "0", "0"]  # 0.5/2.0 of 5 steps, rounded up


def test_scale_steps():
    values = np.array([0, 1e-30, -1e-30, 1, -1, 0.2, 0.21, np.nan, np.inf, -np.inf])
    assert scale_steps(values, 1.0).tolist() == [0, 1, -1, 5, -5, 1, 2, 0, 5, -5]
    assert scale_steps(np.zeros(2), 0.0).tolist() == [0, 0]


def test_a_missing_logprob_has_no_colour_and_no_say_in_the_scale():
    odd = hand_made("s", [0, 1, 2], [False, True, True], inference_logprobs=[0, np.nan, -1.0], ce_weights=[0, 1, 1])
    tokens = shown(odd, decode, stream="ce_weights").all("i")
    assert tokens[1]["class"] == "t e5" and tokens[1]["data-b"] == "nan"
    assert tokens[2]["class"] == "t b-5 e5"


def test_two_fragments_on_a_page_do_not_share_a_switch():
    page = token_html(sample(), decode)
    assert str(page).startswith('<form method="dialog"') and " id=" not in str(page)
    assert str(page) == str(token_html(sample(), decode))


def test_html_shows_prints_and_saves(tmp_path):
    page = Html("<b>\u00b7</b>", title="a & <b>")
    assert page._repr_html_() == str(page) == "<b>\u00b7</b>"
    assert repr(page) == "Html('a & <b>', 8 characters)"
    text = page.save(tmp_path / "page.html").read_text("utf-8")
    assert text.startswith("<!doctype html>") and "<title>a &amp; &lt;b&gt;</title>" in text and str(page) in text


def test_4096_tokens_with_8_streams_stay_small_and_quick():
    big = full_sample(4096, 512)
    start = time.perf_counter()
    page = token_html(big, decode)
    seconds = time.perf_counter() - start
    assert len(str(page).encode()) < 1_000_000
    assert seconds < 2.0  # about 0.05 s on an idle core


def test_importing_viz_does_not_load_pyplot():
    code = "import sys, prl.viz; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
