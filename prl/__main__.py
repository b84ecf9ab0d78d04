"""`python -m prl run FILE.toml` trains what the file describes; `python -m prl schema` prints every key."""

import argparse
import sys
from pathlib import Path

from prl.errors import ConfigError


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0, or 2 after one line that says what is wrong with the file."""
    parser = argparse.ArgumentParser(prog="python -m prl", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run", help="train what a TOML file describes").add_argument("file", type=Path)
    commands.add_parser("schema", help="print every key of such a file")
    options = parser.parse_args(arguments)
    try:
        run(options.file) if options.command == "run" else schema()
    except ConfigError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def run(file: Path) -> None:
    """Train to max_steps; output_dir gets config.toml, history.jsonl and, also after an interrupt, a checkpoint.

    Raises:
      ConfigError: the file, or an output_dir that holds a run already.
    """
    from prl.toml import load_toml, to_toml

    config = load_toml(file)
    out = Path(config.output_dir)
    if (out / "history.jsonl").exists():
        raise ConfigError(f"output_dir: {str(out)!r} holds a run already (history.jsonl). Name another, or move it.")
    from prl.toml.build import build  # after the file is known to be right: it takes seconds to load

    runner = build(config)
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.toml").write_text(to_toml(config), encoding="utf8")
    try:
        runner.fit(config.max_steps)
    finally:
        if runner.history:
            runner.save(out / "checkpoint")
        runner.close()
    print(f"{len(runner.history)} steps; {out}/ holds history.jsonl, config.toml and the checkpoint.")


def schema() -> None:
    """Print the page of keys."""
    from prl.toml import describe

    print(describe(), end="")


if __name__ == "__main__":
    sys.exit(main())
