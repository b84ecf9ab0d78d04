"""Run a percent notebook as a script, every cell before the first `.fit(` twice; exit 1 where the two differ.

python tests/notebooks/twice.py notebooks/201_grpo_cell_by_cell.py
"""

import ast
import contextlib
import io
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import jupytext


def run(source: str, names: dict[str, Any]) -> str:
    """What the cell prints and shows: its output and the repr of its last expression."""
    tree, out = ast.parse(source), io.StringIO()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(out):
        exec(compile(tree, "<cell>", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names) if last else None
    for show in ("_repr_png_", "_repr_html_"):
        if last and (shown := getattr(value, show, lambda: None)()) is not None:
            return out.getvalue() + str(shown)
    return out.getvalue() + repr(value)


def state(names: dict[str, Any]) -> dict[str, bytes]:
    """The bytes of every group list and batch in the namespace."""
    import prl

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in {"groups", "scored", "best_only", "batch"} & names.keys():
            found[name] = prl.save(names[name], Path(folder) / name).read_bytes()
    return found


def main(path: str) -> None:
    module = sys.modules["cells"] = ModuleType("cells")  # functions of a cell are looked up in their module
    names: dict[str, Any] = vars(module)
    cells = [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    until = next((i for i, source in enumerate(cells) if ".fit(" in source), len(cells))
    for source in cells[:until]:
        if "check_types()" in source:
            run(source, names)
            continue
        first = run(source, names), state(names)
        again = run(source, names), state(names)
        if first != again:
            sys.exit(f"a second run differs:\n{source}\n--- first\n{first[0]}\n--- second\n{again[0]}")
    print(f"{until} cells ran twice with equal results")


if __name__ == "__main__":
    main(sys.argv[1])
