"""The base of every config: frozen, and unknown keys are errors that name the nearest valid one."""

import difflib
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from prl.errors import ConfigError


class Frozen(BaseModel):
    """A frozen pydantic model without room for unknown keys. A changed setting is a new object."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _know_every_key(cls, data: Any) -> Any:
        unknown = sorted(set(data) - set(cls.model_fields)) if isinstance(data, dict) else []
        if unknown:
            raise ValueError(unknown_key(cls.__name__, unknown[0], list(cls.model_fields)))
        return data


def unknown_key(where: str, key: str, valid: list[str]) -> str:
    """The message for a key that does not exist."""
    near = difflib.get_close_matches(key, valid, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{where}: unknown key {key!r}; valid keys are {', '.join(valid)}.{hint}"


def above_zero(max_grad_norm: float) -> float:
    """The norm as given.

    Raises:
      ConfigError: it is not above 0, so every gradient would vanish.
    """
    if not max_grad_norm > 0:
        raise ConfigError(f"Runner: got max_grad_norm={max_grad_norm!r}; need a number above 0.")
    return max_grad_norm


def at_least(where: str, minimum: int, **values: int) -> None:
    """Raise ConfigError for each named whole number that is below `minimum` or not a whole number."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise ConfigError(f"{where}: got {name}={value!r}; need a whole number of at least {minimum}.")
