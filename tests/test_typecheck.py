"""check_types switches the checks on, or says why it cannot. Each case in a fresh interpreter."""

import subprocess
import sys

import pytest

from prl.typecheck import CHECKER

OUTCOME = """
import torch, prl
from prl.errors import PrlError
try:
    {prepare}
    prl.advantages.group_norm(torch.zeros(2, 4), torch.zeros(2, 3))
except Exception as error:
    print(type(error).__name__, error)
"""


def outcome(prepare: str) -> str:
    """How a call with lengths of the wrong shape ends, as "ErrorName message"."""
    code = OUTCOME.format(prepare=prepare)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("prepare", ["prl.check_types()", "prl.check_types(); import prl.ops; prl.check_types()"])
def test_a_wrong_shape_is_named(prepare):
    assert outcome(prepare).startswith("TypeCheckError")
    assert "lengths" in outcome(prepare)


def test_without_it_the_same_call_is_not_checked():
    assert not outcome("pass").startswith("TypeCheck")


def test_too_late_is_an_error_that_names_the_modules():
    message = outcome("import prl.types; prl.check_types()")
    assert message.startswith("ConfigError check_types: already loaded without checks: prl.types, prl.types.arrays")
    assert "Restart the kernel and call prl.check_types() before" in message


def test_an_int_stands_for_a_float():
    call = "x = torch.ones(3); print(float(prl.losses.ipo(x, x, x, eps=1).per_token.sum())); raise SystemExit"
    assert outcome(f"prl.check_types(); {call}") == "-3.0\n"


def test_the_tests_run_with_the_same_checker(request):
    assert request.config.getoption("--jaxtyping-packages") == f"prl,{CHECKER}"
