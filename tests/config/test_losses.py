"""Loss configs: defaults, what the door refuses, and the choice by `type`."""

import math

import pytest
from pydantic import TypeAdapter

from prl.config import IPO, IcePop, RlLoss


def test_the_defaults_are_those_of_the_algorithms_page():
    assert IPO().model_dump() == {"type": "ipo", "eps": 0.3, "adv_tau": 1.0}
    centring = {"score_centering": False, "score_centering_topk": 128}
    assert IcePop().model_dump() == {"type": "icepop", "ratio_low": 0.2, "ratio_high": 5.0, "adv_tau": 1.0} | centring


@pytest.mark.parametrize("low", [2.0, 0.0, -0.1])
def test_a_low_end_that_drops_on_policy_tokens_is_refused(low):
    text = rf"IcePop: got ratio_low={low}; need 0 < ratio_low <= 1, so that an on-policy token is kept. .* is 0.2."
    with pytest.raises(ValueError, match=text):
        IcePop(ratio_low=low)


def test_a_high_end_that_drops_on_policy_tokens_is_refused():
    text = r"IcePop: got ratio_high=0.9; need ratio_high >= 1, so that an on-policy token is kept. .* is 5.0."
    with pytest.raises(ValueError, match=text):
        IcePop(ratio_high=0.9)


def test_the_band_may_shrink_to_the_policy_that_sampled():
    assert IcePop(ratio_low=1.0, ratio_high=1.0).ratio_low == 1.0


@pytest.mark.parametrize("config", [IPO, IcePop])
@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_a_multiplier_that_silences_or_reverses_the_credit_is_refused(config, bad):
    with pytest.raises(ValueError, match="adv_tau"):
        config(adv_tau=bad)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize(("config", "name"), [(IPO, "eps"), (IcePop, "ratio_low"), (IcePop, "ratio_high")])
def test_settings_are_finite(config, name, bad):
    with pytest.raises(ValueError, match=f"{name}(.|\n)*finite"):
        config(**{name: bad})


def test_a_misspelt_key_names_the_nearest():
    with pytest.raises(ValueError, match="IcePop: unknown key 'ratio_hi'; valid keys are .* mean 'ratio_high'"):
        IcePop(ratio_hi=4.0)


def test_a_loss_is_chosen_by_its_type():
    adapter = TypeAdapter(RlLoss)
    assert adapter.validate_python({"type": "icepop", "ratio_low": 0.5}) == IcePop(ratio_low=0.5)
    assert adapter.validate_python({"type": "ipo"}) == IPO()
    for bad in ({"eps": 0.3}, {"type": "ppo"}):
        with pytest.raises(ValueError, match="type"):
            adapter.validate_python(bad)


def test_a_config_does_not_change():
    with pytest.raises(ValueError, match="frozen"):
        IcePop().ratio_low = 0.5
