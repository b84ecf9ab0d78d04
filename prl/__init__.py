"""Reinforcement-learning research on language models, cell by cell.

The names a newcomer needs are here; each loads its module when it is first used, so
`import prl` and `import prl.losses` stay cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prl.algorithms import GRPO as GRPO
    from prl.config import IPO as IPO
    from prl.config import AdamW as AdamW
    from prl.config import IcePop as IcePop
    from prl.config import Sampling as Sampling
    from prl.curricula import Curriculum as Curriculum
    from prl.files import load as load
    from prl.files import save as save
    from prl.runner import Runner as Runner
    from prl.runner import Source as Source
    from prl.typecheck import check_types as check_types

__version__ = "0.1.0"

_HOME = {
    "AdamW": "config",
    "Curriculum": "curricula",
    "GRPO": "algorithms",
    "IPO": "config",
    "IcePop": "config",
    "Runner": "runner",
    "Sampling": "config",
    "Source": "runner",
    "check_types": "typecheck",
    "load": "files",
    "save": "files",
}
_MODULES = (
    "advantages", "algorithms", "config", "curricula", "engines", "envs", "errors", "frames", "losses",
    "models", "ops", "oracle", "renderers", "testing", "trajectories", "types", "viz",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"prl.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'prl' has no attribute {name!r}; dir(prl) lists what it has.")
    value = getattr(import_module(f"prl.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES} - {"Any", "TYPE_CHECKING", "import_module"})
