"""opd, opsd and sft: who is asked about which tokens, and what each token gets."""

import asyncio

import numpy as np
import pytest

from prl.algorithms import OPD, OPSD, SFT, Models, references_of, source_of
from prl.config import FrozenModel
from prl.errors import ConfigError, DataError
from prl.models.tokenizer import byte_tokenizer
from prl.renderers import ChatML
from prl.types import Step, Task
from tests.algorithms.groups import group, of_steps, streams, trace, untouched

TEACHER = FrozenModel(name="big", base_url="http://localhost:8001/v1")
TOKENIZER = byte_tokenizer()
START, END = 256, 257


class Asked:
    """A score function that answers with positions: entry t is -t, 0.0 at position 0. It remembers its questions."""

    def __init__(self):
        self.calls = []

    async def __call__(self, model, token_ids):
        self.calls.append((model, list(token_ids)))
        return -np.arange(len(token_ids), dtype=np.float32)


def ask(algorithm, sample, task=None):
    """What the algorithm's only reference answers, and what it asked for."""
    score = Asked()
    models = Models(score, task or Task("k", "q"), ChatML(TOKENIZER), TOKENIZER)
    [(name, reference)] = references_of(algorithm).items()
    assert name == "ref_logprobs"
    return asyncio.run(reference(sample, models)).tolist(), score.calls


def system(text):
    return [START, *b"system\n", *text.encode(), END, *b"\n"]


def scored_with_reference(algorithm, rows):
    return algorithm.score_group(
        rows.assign(ref_logprobs=[np.full(len(s.token_ids), -2.0) * s.loss_mask for s in rows.samples]), {}
    )


def test_opd_scores_the_sample_in_its_own_context():
    [sample] = group(trace("a", 0.0, [5, 6])).samples
    answer, calls = ask(OPD(teacher=TEACHER), sample)
    assert calls == [(TEACHER, [1, 2, 5, 6])]
    assert answer == [0, -1, -2, -3]


def test_opsd_puts_the_demonstration_in_front_and_slices_it_off():
    [sample] = group(trace("a", 0.0, [5, 6])).samples
    algorithm = OPSD(template="see {demonstration}, {this} too")
    hint = system("see 4 + 4, {this} too")
    answer, calls = ask(algorithm, sample, Task("k", "q", info={"demonstration": "4 + 4"}))
    assert calls == [("policy", [*hint, 1, 2, 5, 6])]
    # One number per token of the sample, its last one included: positions len(hint) .. len(hint) + 3.
    assert answer == [-float(len(hint) + t) for t in range(4)]


DEMONSTRATIONS = {
    "info": ("demonstration", Task("k", "q", answer="no", info={"demonstration": "yes"}), "yes"),
    "info before the field": ("answer", Task("k", "q", answer="no", info={"answer": "yes"}), "yes"),
    "the field": ("answer", Task("k", "q", answer="yes", info={"other": "no"}), "yes"),
    "empty text": ("demonstration", Task("k", "q", info={"demonstration": ""}), ""),
}


@pytest.mark.parametrize(("key", "task", "expected"), DEMONSTRATIONS.values(), ids=DEMONSTRATIONS)
def test_where_the_demonstration_comes_from(key, task, expected):
    [sample] = group(trace("a", 0.0, [5])).samples
    _, [(_, ids)] = ask(OPSD(demo_key=key, template="<{demonstration}>"), sample, task)
    assert ids[:-3] == system(f"<{expected}>")


MISSING = {
    "no key": (Task("t7", "q", info={"solution": "4", "steps": 2}), "got nothing under demo_key='demonstration'"),
    "not text": (Task("t7", "q", info={"demonstration": 4, "solution": "", "steps": 2}), "got a int under"),
}


@pytest.mark.parametrize(("task", "got"), MISSING.values(), ids=MISSING)
def test_a_task_without_a_demonstration(task, got):
    [sample] = group(trace("a", 0.0, [5])).samples
    with pytest.raises(DataError, match=f"OPSD, task 't7': {got}.*'solution', 'steps'.*key, prompt, answer"):
        ask(OPSD(), sample, task)


def test_an_answer_that_a_task_does_not_have():
    [sample] = group(trace("a", 0.0, [5])).samples
    with pytest.raises(DataError, match="got nothing under demo_key='answer'.*Its info holds no key"):
        ask(OPSD(demo_key="answer"), sample, Task("k", "q"))


def test_opsd_renderer_by_name():
    [sample] = group(trace("a", 0.0, [5])).samples
    task = Task("k", "q", info={"demonstration": "d"})
    default = OPSD(template="{demonstration}", renderer="default")
    _, [(_, ids)] = ask(default, sample, task)
    assert ids == [*system("d"), 1, 2, 5]  # the byte tokenizer's template is ChatML too
    with pytest.raises(ConfigError, match="renderer='qwen': unknown; did you mean"):
        ask(OPSD(renderer="qwen"), sample, task)


@pytest.mark.parametrize("algorithm", [OPD(teacher=TEACHER), OPSD()], ids=["opd", "opsd"])
def test_weight_one_on_trained_tokens_and_no_advantages(algorithm):
    rows = group(trace("a", 1.0, [5, 6]), trace("b", 0.0, [7]), trace("c", 0.0, [8], valid=False))
    scored, state = scored_with_reference(algorithm, rows)
    assert streams(scored, "ref_kl_weights") == [[0, 0, 1, 1], [0, 0, 1]]
    assert streams(scored, "ref_logprobs") == [[0, 0, -2, -2], [0, 0, -2]]
    assert [streams(scored, name) for name in ("advantages", "rl_weights", "ce_weights")] == [[None, None]] * 3
    assert scored.episodes[2].traces[0].samples[0].ref_kl_weights is None
    assert (state, untouched(rows), source_of(algorithm)) == ({}, True, "policy")


def test_without_a_reference_the_token_is_named():
    with pytest.raises(DataError, match="'a#0': 1 ref_kl tokens, and ref_logprobs is None"):
        OPSD().score_group(group(trace("a", 1.0, [5])), {})


def test_sft_imitates_every_sampled_token():
    silent = of_steps("b", 0.0, [Step([1, 2], [7, 8], None)])  # an endpoint that reports no log-probabilities
    rows = group(trace("a", 1.0, [5]), silent)
    sft = SFT(sampling={"source": TEACHER})
    scored, state = sft.score_group(rows, {})
    assert streams(scored, "ce_weights") == [[0, 0, 1], [0, 0, 1, 1]]
    assert [streams(scored, n) for n in ("advantages", "rl_weights", "ref_kl_weights")] == [[None, None]] * 3
    assert (state, untouched(rows), source_of(sft), references_of(sft)) == ({}, True, TEACHER, {})


def test_defaults():
    assert OPSD().demo_key == "demonstration"
    assert OPSD().renderer == "auto"


REFUSED = {
    "opd against itself": (lambda: OPD(teacher="policy"), "against itself the KL is zero on every token"),
    "opd without a teacher": (lambda: OPD(), "teacher"),
    "opd with a name only": (lambda: OPD(teacher={"name": "big"}), "base_url"),
    "opsd with a teacher": (lambda: OPSD(teacher=TEACHER), "unknown key 'teacher'"),
    "opsd without a place": (lambda: OPSD(template="see the example"), r"does not hold \{demonstration\}"),
    "sft without a source": (lambda: SFT(), "cross-entropy on the policy's own tokens is not a distillation target"),
    "sft of the policy": (lambda: SFT(sampling={"source": "policy"}), "Give the teacher as sampling.source"),
}


@pytest.mark.parametrize(("build", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused_with_the_reason(build, reason):
    with pytest.raises(ValueError, match=reason):
        build()
