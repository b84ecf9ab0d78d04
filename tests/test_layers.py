"""The import diagram and the size limits of prl, held by reading its source."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PRL = Path(__file__).parents[1] / "prl"

MAY_IMPORT = {
    "errors": "",
    "randomness": "errors",
    "loop": "errors",
    "typecheck": "errors",
    "types": "errors",
    "config": "errors",
    "ops": "errors types",
    "advantages": "errors types ops",
    "losses": "errors types ops",
    "trajectories": "errors types ops",
    "oracle": "errors types ops",
    "testing": "errors types ops losses",
    "curricula": "errors types ops config",
    "policy": "errors types ops losses config",
    "learner": "errors types ops losses config policy",
    "renderers": "errors types",
    "models": "errors policy renderers",
    "engines": "errors randomness types ops config",
    "envs": "errors types",
    "algorithms": "errors types ops config advantages trajectories renderers engines",
    "rollouts": "errors randomness types config trajectories renderers engines envs",
    "files": "errors types",
    "checkpoint": "errors types files policy",
    "references": "errors types config engines algorithms",
    "sources": "errors types config curricula envs algorithms",
    "collect": "errors randomness types config trajectories curricula algorithms rollouts references sources",
    "overlap": "types",
    "serving": "types config algorithms collect engines rollouts references sources overlap",
    "reporting": "errors types learner sources",
    "frames": "errors types",
    "viz": "errors types frames",
}
"""What each module of prl may import of prl, besides itself."""

ANYTHING = ("runner", "toml", "__main__", "__init__")
"""May import all of prl; nothing above imports them."""

ALSO = {"losses/select.py": "config"}
"""Single files that may import more than their module."""

UPWARD = ("types", "viz", "_repr_html_")
"""The one upward import: types shows itself through prl.viz, inside this method."""

PURE = ("advantages", "losses")
PURE_THIRD_PARTY = ("torch", "jaxtyping", "einops")
ONLY_IN = {"vllm": "engines/vllm.py"}
OUTSIDE = ("notebooks", "recipes", "paper_repro")

FUNCTION_LINES, MODULE_LINES = 40, 300


def imported(node: ast.AST, function: str = "") -> Iterator[tuple[str, str]]:
    """(dotted name, innermost enclosing function) of every import below `node`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom):
            module = "." * child.level + (child.module or "")
            yield from ((f"{module}.{alias.name}", function) for alias in child.names)
        elif isinstance(child, ast.Import):
            yield from ((alias.name, function) for alias in child.names)
        else:
            inner = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
            yield from imported(child, inner)


def layer_of(file: str) -> str:
    return file.split("/")[0].removesuffix(".py")


def import_faults(file: str, source: str) -> list[str]:
    """What the diagram forbids in `file`, a path below prl/."""
    layer = layer_of(file)
    if layer not in MAY_IMPORT and layer not in ANYTHING:
        return [f"{file}: {layer} has no row in MAY_IMPORT"]
    found = imported(ast.parse(source))
    reasons = ((name, forbidden(file, layer, name, function)) for name, function in found)
    return [f"{file}: {name}: {reason}" for name, reason in reasons if reason]


def forbidden(file: str, layer: str, name: str, function: str) -> str:
    """Why `file` may not import `name` inside `function`, or an empty string."""
    root, _, rest = name.partition(".")
    if not root:
        return "relative import"
    if root in OUTSIDE:
        return "prl is complete without it"
    if root in ONLY_IN:
        return "" if file == ONLY_IN[root] else f"only {ONLY_IN[root]} may import it"
    if root != "prl":
        foreign = layer in PURE and root not in PURE_THIRD_PARTY and root not in sys.stdlib_module_names
        return f"{layer} may import only {', '.join(PURE_THIRD_PARTY)}" if foreign else ""
    target = rest.split(".")[0]
    if layer in ANYTHING or target in (layer, "__version__") or (layer, target, function) == UPWARD:
        return ""
    allowed = f"{MAY_IMPORT[layer]} {ALSO.get(file, '')}".split()
    return "" if target in allowed else f"{layer} may import {', '.join(allowed) or 'nothing'} of prl"


def size_faults(file: str, source: str) -> list[str]:
    """Functions (docstring not counted) and modules that are too long."""
    lines = len(source.splitlines())
    faults = [f"{file}: {lines} lines, at most {MODULE_LINES}"] if lines > MODULE_LINES else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (n := body_lines(node)) > FUNCTION_LINES:
            faults.append(f"{file}: {node.name} has {n} lines, at most {FUNCTION_LINES}")
    return faults


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    documented = ast.get_docstring(node, clean=False) is not None
    docstring = first.end_lineno - first.lineno + 1 if documented else 0
    return node.end_lineno - node.lineno + 1 - docstring


@pytest.mark.parametrize("check", [import_faults, size_faults])
def test_every_module_keeps_to_the_rules(check):
    files = sorted(PRL.rglob("*.py"))
    assert len(files) > 5
    faults = [fault for path in files for fault in check(path.relative_to(PRL).as_posix(), path.read_text())]
    assert not faults, "\n".join(faults)


def test_the_diagram_has_no_circle():
    done: set[str] = set()
    while ready := {m for m, allowed in MAY_IMPORT.items() if m not in done and set(allowed.split()) <= done}:
        done |= ready
    assert done == set(MAY_IMPORT)


SHOWS_ITSELF = "class Shown:\n    def {}(self):\n        from prl.viz import html\n        return html(self)\n"

REFUSED = {
    "a neighbour": ("advantages/rae.py", "from prl.losses import ipo"),
    "a neighbour inside a function": ("losses/ipo.py", "def f():\n    from prl.advantages import rae"),
    "upward, from": ("ops.py", "from prl.runner import Runner"),
    "upward, from the package": ("ops.py", "from prl import runner"),
    "upward, plain": ("ops.py", "import prl.runner as r"),
    "through the lazy package": ("ops.py", "import prl"),
    "a lazy name": ("ops.py", "from prl import GRPO"),
    "for the type checker only": ("ops.py", "if TYPE_CHECKING:\n    from prl.config import IPO"),
    "no row": ("helpers.py", "import math"),
    "no row, package": ("utils/tools.py", "import math"),
    "relative": ("losses/ipo.py", "from .ratios import ratio"),
    "relative, bare": ("losses/ipo.py", "from . import ratios"),
    "config outside select": ("losses/ipo.py", "from prl.config import IPO"),
    "numpy in the pure core": ("advantages/max_rl.py", "import numpy as np"),
    "vllm elsewhere": ("engines/server.py", "def f():\n    from vllm import LLM"),
    "notebooks": ("runner.py", "import notebooks.helpers"),
    "recipes": ("runner/step.py", "from recipes import demo"),
    "viz at the top of types": ("types/group.py", "from prl.viz import html"),
    "viz in another method": ("types/group.py", SHOWS_ITSELF.format("show")),
    "another layer in the method": ("types/group.py", SHOWS_ITSELF.format("_repr_html_").replace("viz", "frames")),
}

ACCEPTED = {
    "below": ("losses/ipo.py", "import math\nimport torch\nfrom prl.types import TokenLoss"),
    "its own module": ("losses/ipo.py", "from prl.losses.ratios import ratio"),
    "config in select": ("losses/select.py", "from prl.config import IPO"),
    "vllm in its file": ("engines/vllm.py", "def f():\n    from vllm import LLM"),
    "types shows itself": ("types/group.py", SHOWS_ITSELF.format("_repr_html_")),
    "the runner": ("runner/step.py", "import prl.losses\nfrom prl.envs import base"),
}


@pytest.mark.parametrize(("file", "source"), REFUSED.values(), ids=REFUSED)
def test_a_planted_import_is_refused(file, source):
    assert len(import_faults(file, source)) == 1


@pytest.mark.parametrize(("file", "source"), ACCEPTED.values(), ids=ACCEPTED)
def test_an_allowed_import_is_accepted(file, source):
    assert import_faults(file, source) == []


def function_of(lines: int, docstring: str = "") -> str:
    return "def f():\n" + docstring + "    x = 1\n" * (lines - 1)


def test_sizes_are_counted_without_docstrings():
    docstring = '    """One.\n\n    Two.\n    """\n'
    assert size_faults("ops.py", function_of(FUNCTION_LINES, docstring)) == []
    assert len(size_faults("ops.py", function_of(FUNCTION_LINES + 1, docstring))) == 1
    assert size_faults("ops.py", "x = 1\n" * MODULE_LINES) == []
    assert len(size_faults("ops.py", "x = 1\n" * (MODULE_LINES + 1))) == 1
