import json
import subprocess
import sys

import pytest

from benchmarks import _trl, demo_vs_trl, step_vs_trl
from prl import models
from prl.types import Task


def rows(*seconds):
    return [{"seconds": s, "rollout": s / 2, "length": 64.0, "prompt": 72.0} for s in seconds]


def test_a_step_of_prl_has_full_completions_and_every_token_trains():
    side = step_vs_trl.Side("prl", "fixed")
    done = side.step()
    assert (done["length"], done["prompt"]) == (64.0, 72.0)
    assert 0 < done["rollout"] < done["seconds"]
    assert side._steps._runner.history[0].tokens == 64 * 64
    side._steps._runner.close()


def test_stops_are_the_given_ones_only():
    renderer = step_vs_trl.StopsAt(models.tiny(hidden=8, layers=1).tokenizer, [512])
    assert renderer.get_stop_token_ids() == [512]


def test_the_ratio_is_the_median_of_neighbouring_steps():
    taken = {"prl": rows(1.0, 2.0, 4.0), "trl": rows(4.0, 2.0, 8.0)}  # 1/4, 1, 1/2
    assert step_vs_trl.ratio(taken) == 0.5
    assert "ratio     0.50" in step_vs_trl.table("fixed", taken)


@pytest.mark.parametrize(
    ("accuracies", "seconds"),
    [
        ((0.2, 0.9, 0.8, 0.9, 0.85, 0.1), 3.0),  # the first 0.9 does not hold; the second does
        ((0.2, 0.9), None),
        ((0.84, 0.84, 0.84), None),
        ((0.9, 0.9), 0.0),
    ],
)
def test_reached_needs_two_evaluations_in_a_row(accuracies, seconds):
    assert demo_vs_trl.reached([(float(i), a) for i, a in enumerate(accuracies)]) == seconds


def test_the_verdict_has_a_ratio_only_where_both_arrived():
    assert demo_vs_trl.verdict(0, {"prl": 10.0, "trl": 25.0}).endswith("prl 10.0 s, trl 25.0 s, ratio 0.40")
    assert demo_vs_trl.verdict(1, {"prl": 10.0, "trl": None}).endswith("prl 10.0 s, trl not reached")


def test_only_the_exact_answer_is_rewarded():
    task = Task("t", "spell", "lnug", {})
    assert [demo_vs_trl.exact(task, text) for text in ("lnug", "lnu", "lnugg")] == [1.0, 0.0, 0.0]


def test_prompts_are_the_same_tokens_on_both_sides():
    policy = models.tiny(hidden=8, layers=1)
    tasks = [Task("a", "spell <|im_start|>x", "b", {}), Task("b", "\u00e9", "b", {})]
    assert _trl.prompt_tokens(policy, tasks[1:]) == len("<user\n") + 2 + len(">\n<assistant\n")
    with pytest.raises(AssertionError, match="differ on task a"):
        _trl.prompt_tokens(policy, tasks)


def test_a_worker_answers_line_by_line_and_prints_elsewhere():
    code = (
        "import sys; from benchmarks._trl import serve\n"
        "class Side:\n"
        "    def __init__(self, name): print('noise')\n"
        "    def double(self, x): print('more noise'); return 2 * x\n"
        "serve(Side, sys.argv[1])"
    )
    command = [sys.executable, "-c", code, json.dumps({"name": "a"})]
    done = subprocess.run(command, cwd=_trl.ROOT, input='["double", {"x": 4}]\n', capture_output=True, text=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == ["ready", 8]
