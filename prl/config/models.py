"""References to models: the live policy, or a frozen one that somebody else hosts."""

import os
from typing import Literal

from pydantic import Field, field_validator

from prl.config.base import Frozen
from prl.errors import ConfigError


class FrozenModel(Frozen):
    """A model behind an OpenAI-compatible endpoint. prl never starts or updates it; its rollouts and scores never age.

    Source: algorithms page, "Model References".
    """

    name: str = Field(min_length=1)
    """The name under which the endpoint serves it."""
    base_url: str = Field(min_length=1)
    """Where it is served, with the version part: "http://localhost:8001/v1"."""
    api_key_var: str | None = None
    """The environment variable that holds the key; None sends none."""

    @field_validator("base_url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError(
                f"FrozenModel: got base_url={url!r}; need an address such as 'http://localhost:8001/v1'. "
                "prl does not host frozen models."
            )
        return url.rstrip("/")

    def api_key(self) -> str | None:
        """The key, or None where no variable is named.

        Raises:
          ConfigError: the named variable is not set.
        """
        if self.api_key_var is None:
            return None
        if self.api_key_var not in os.environ:
            raise ConfigError(
                f"FrozenModel {self.name!r}: api_key_var={self.api_key_var!r} names an environment variable that is "
                "not set. Export it, or leave api_key_var out."
            )
        return os.environ[self.api_key_var]


ModelRef = Literal["policy"] | FrozenModel
"""The live policy, or a frozen hosted model."""


class AlgoSampling(Frozen):
    """How an algorithm's training rollouts are produced."""

    source: ModelRef = "policy"
    """The model that generates them."""
