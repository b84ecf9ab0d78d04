"""Other people's libraries, in an environment of their own beside `.venv`, made at the first run.

It holds the same torch and transformers, prl itself, and

    trl 1.16.0         its GRPOTrainer, and selective_log_softmax
    verifiers 0.4.0    its message graph
    verl 0.9.1         its fused linear log-probabilities and group advantages; with the few packages that
                       these import, since its own pins exclude this transformers
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prl.types import Step

ROOT = Path(__file__).parents[1]
PIP = "-m pip --disable-pip-version-check install --quiet".split()
OLD = "hydra-core==1.3.8 omegaconf==2.3.0 antlr4-python3-runtime==4.9.3".split()
INSTALLS = [
    [*PIP, "-c", "constraints-cpu.txt", "reasoning-gym", "-e", ".", "trl==1.16.0", "verifiers==0.4.0"],
    [*PIP, "-c", "constraints-cpu.txt", "ray==2.60.0", "codetiming==1.4.0", "cloudpickle", "orjson"],
    [*PIP, "--no-deps", "verl==0.9.1", "tensordict==0.10.0", "pyvers==0.1.0", *OLD],
]


def environment() -> Path:
    """The interpreter of `.venv-peers`; installs where that is missing or was built from other requirements."""
    folder = ROOT / ".venv-peers"
    python, mark = folder / "bin" / "python", folder / ".installed"
    needs = [str(INSTALLS), *((ROOT / name).read_text() for name in ("pyproject.toml", "constraints-cpu.txt"))]
    wanted = "\n".join(needs)
    if mark.exists() and mark.read_text() == wanted:
        return python
    print(f"installing the peers and prl into {folder.name}/; the first time takes some minutes", flush=True)
    make = [] if python.exists() else [[sys.executable, "-m", "venv", str(folder)]]
    for command in [*make, *([str(python), *install] for install in INSTALLS)]:
        if subprocess.run(command, cwd=ROOT).returncode:
            sys.exit(f"benchmarks: `{' '.join(command)}` failed, see above; delete {folder.name}/ to start afresh.")
    mark.write_text(wanted)
    return python


def verifiers_calls(steps: Sequence[Step]) -> list[Any]:
    """(messages, response) of each call of a conversation, as verifiers receives them."""
    from verifiers.v1.types import AssistantMessage, Response, TurnTokens, UserMessage

    calls, messages, seen = [], [], 0
    for i, step in enumerate(steps):
        messages = [*messages, UserMessage(role="user", content=f"question {i}")]
        tokens = TurnTokens(
            prompt_ids=step.prompt_ids.tolist(), completion_ids=step.completion_ids.tolist(),
            completion_logprobs=step.completion_logprobs.tolist(),
            message_spans=[*[None] * (len(messages) - 1), (seen, len(step.prompt_ids))],
        )  # fmt: skip
        reply = AssistantMessage(role="assistant", content=f"answer {i}")
        calls.append((messages, Response(id=str(i), created=0, model="m", message=reply, finish_reason="stop",
                                         tokens=tokens)))  # fmt: skip
        messages, seen = [*messages, reply], len(step.prompt_ids) + len(step.completion_ids)
    return calls


def verifiers_samples(calls: Sequence[Any]) -> list[tuple[Any, Any, Any]]:
    """The calls committed to a trace one after the other; (tokens, mask, log-probabilities) of each branch."""
    import verifiers.v1 as vf
    from verifiers.v1.graph import prepare_turn

    trace = vf.Trace.model_construct(task=None, agent=None, nodes=[], calls=[], tools=[])
    for messages, response in calls:
        prepare_turn(trace, messages).commit(response)
    return [(b.token_ids, b.sampled_mask, b.logprobs) for b in trace.branches]
