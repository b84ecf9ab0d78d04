"""Shape and type checks on every prl function, for a notebook that wants them."""

import sys

from jaxtyping import install_import_hook

from prl.errors import ConfigError

CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
"""The tower lets an int stand for a float, as in `ipo(..., eps=1)`."""
_NEEDS_NO_CHECK = ("prl.errors", "prl.typecheck")


def check_types() -> None:
    """Check the annotated types and shapes of every prl call from here on.

    Call it before anything else of prl is imported: a module gets its checks while it
    loads. Calling it again changes nothing.

    Raises:
      ConfigError: a prl module was loaded without checks; nothing is switched on.
    """
    loaded = {name for name in sys.modules if name.startswith("prl.")}.difference(_NEEDS_NO_CHECK)
    unchecked = sorted(name for name in loaded if not _is_checked(name))
    if unchecked:
        raise ConfigError(
            f"check_types: already loaded without checks: {', '.join(unchecked)}; checks are added while a module "
            "loads. Restart the kernel and call prl.check_types() before any other import from prl."
        )
    if not loaded:
        install_import_hook("prl", CHECKER)


def _is_checked(name: str) -> bool:
    spec = sys.modules[name].__spec__
    return spec is not None and type(spec.loader).__module__.startswith("jaxtyping")
