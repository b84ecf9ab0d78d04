"""Every advantage and every loss keeps every law of prl.testing, or says here why one does not hold.

A new function gets its laws by a row in ROWS.
"""

import inspect
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import prl.advantages
import prl.losses
from prl.advantages import group_norm, linear_length_penalty, max_rl, prompt_mean_weights
from prl.losses import ce, cispo, dppo, gspo, icepop, icepop_centered, ipo, ppo_clip, ref_kl, tis
from prl.testing import advantage_laws, check_advantage, check_loss, loss_laws
from prl.testing.cases import switch
from prl.testing.compare import apart
from prl.testing.laws import judge, outcome
from prl.testing.results import slopes
from prl.testing.subject import advantage_subject, compiled, loss_subject, unchecked

WITH_LENGTHS = {"streams": ("rewards", "lengths")}


def shaped(rewards, output_tokens, input_tokens, turns, *, valid=None):
    return group_norm(linear_length_penalty(rewards, output_tokens, input_tokens, turns, valid=valid), valid=valid)


ADVANTAGES = {  # name: (function, settings, laws that do not hold)
    "group_norm": (group_norm, {}, {}),
    "group_norm, lengths": (group_norm, WITH_LENGTHS, {}),
    "group_norm, std": (partial(group_norm, std=True), {}, {}),
    "group_norm, lengths and std": (partial(group_norm, std=True), WITH_LENGTHS, {}),
    "max_rl": (max_rl, {}, {}),
    "max_rl, minus_one": (
        partial(max_rl, all_fail="minus_one"), {},
        {"constant group": "an all-fail group gets -1", "single rollout": "a failure gets -1"},
    ),
    "linear_length_penalty": (
        linear_length_penalty, {},
        {"constant group": "a shaped reward, before its baseline", "single rollout": "a shaped reward"},
    ),
    "linear_length_penalty, then group_norm": (shaped, {}, {"constant group": "of equals the shorter earns more"}),
    "prompt_mean_weights": (prompt_mean_weights, {"streams": ("lengths",)}, {}),
}  # fmt: skip

TO_REF = {"on_policy_slope": lambda s: s["trainer_logprobs"] - s["ref_logprobs"]}
VALUE_OF_THE_BOUND = {"dropped loss": "a cut token has the loss of the bound"}

LOSSES = {
    "ipo": (ipo, {}, {}),
    "ipo, adv_tau": (partial(ipo, adv_tau=0.5), {"on_policy_slope": lambda s: -0.5 * s["advantages"]}, {}),
    "icepop": (icepop, {}, {}),
    "icepop, narrow": (partial(icepop, ratio_low=0.8, ratio_high=1.25), {}, {}),
    "icepop_centered": (
        icepop_centered, {},
        dict.fromkeys(("dropped loss", "dropped gradient"), "the correction acts on rejected tokens too"),
    ),
    "ce": (ce, {"on_policy_slope": lambda s: -torch.ones_like(s["trainer_logprobs"])}, {}),
    "ref_kl": (ref_kl, TO_REF, {}),
    "ref_kl, drift": (
        partial(ref_kl, kl_tau=0.1), TO_REF,
        dict.fromkeys(("dropped loss", "dropped gradient"), "the drift term acts on dropped tokens too"),
    ),
    "ppo_clip": (ppo_clip, {}, VALUE_OF_THE_BOUND),
    "cispo": (cispo, {}, {}),
    "cispo, two-sided": (partial(cispo, eps_low=0.2), {}, {}),
    "tis": (tis, {}, {}),
    "dppo": (dppo, {}, {}),
    "gspo": (gspo, {}, VALUE_OF_THE_BOUND | {"split": "one ratio for a whole sequence"}),
}  # fmt: skip

KEEPS_ALL = {"dropped loss", "dropped gradient"}
SILENT = {  # laws that say nothing about a function
    "prompt_mean_weights": {"constant group", "single rollout", "gradient"},
    "ce": KEEPS_ALL | {"nan"},
    "cispo": KEEPS_ALL, "cispo, two-sided": KEEPS_ALL, "tis": KEEPS_ALL,
}  # fmt: skip

NOT_HERE = {
    "by_group": "takes a function and ids",
    "hierarchical": "takes ids",
    "rae": "takes ids and a state",
    "spread": "from traces to tokens",
    "combine": "reduces components",
    "component_counts": "counts components",
    "token_means": "reduces components",
}  # whose own tests hold what is lawful about them

ROWS = ADVANTAGES | LOSSES
LAWS = {name: advantage_laws.LAWS if name in ADVANTAGES else loss_laws.LAWS for name in ROWS}
DRIVEN = [
    (n, law) for n, (_, _, without) in ROWS.items() for law in LAWS[n] if law.name not in without and len(law.cases) > 1
]


def subject_of(name):
    fn, options, _ = ROWS[name]
    return advantage_subject(fn, batch=True, **options) if name in ADVANTAGES else loss_subject(fn, **options)


@pytest.mark.parametrize("name", ROWS)
def test_the_kit_finds_nothing(name):
    fn, options, without = ROWS[name]
    with unchecked():
        report = (
            check_advantage(fn, batch=True, without=without, **options)
            if name in ADVANTAGES
            else check_loss(fn, without=without, **options)
        )
    assert report.ok, report
    silent = {finding.law for finding in report.findings if finding.result == "not applicable"}
    assert silent == SILENT.get(name, set()), report


@pytest.mark.parametrize(("name", "law"), DRIVEN, ids=[f"{name}: {law.name}" for name, law in DRIVEN])
@settings(deadline=None, max_examples=10)
@given(st.integers(1, 40), st.integers(0, 10**6))
def test_law(name, law, size, seed):
    with unchecked():
        found = outcome(law, subject_of(name), size, seed)
    assert not isinstance(found, str), found


@pytest.mark.parametrize("name", [name for name, (_, _, without) in ROWS.items() if without])
def test_what_is_excepted_really_does_not_hold(name):
    without = ROWS[name][2]
    with unchecked():
        findings = [judge(law, subject_of(name)) for law in LAWS[name] if law.name in without]
    broken = {finding.law for finding in findings if finding.result == "FAILED"}
    assert broken == without.keys()


def test_no_function_is_forgotten():
    public = {name for module in (prl.advantages, prl.losses) for name in module.__all__}
    functions = {
        n for n in public if inspect.isfunction(getattr(prl.advantages, n, None) or getattr(prl.losses, n, None))
    }
    assert functions == {name.split(",")[0] for name in ROWS} | NOT_HERE.keys()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # inductor's import
def test_inductor_gives_the_same_numbers():
    subject = loss_subject(ipo)
    values, mask = subject.make(subject.streams, 9, 0), switch(9, 0)
    with unchecked():
        got = slopes(subject, values, mask, compiled(ipo, "inductor"))
    assert apart(got, slopes(subject, values, mask), 1e-12) is None
