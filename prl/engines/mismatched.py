"""A sampler that differs from the trainer on purpose: how much can a loss stand?"""

import math
from collections import deque
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from prl.config.base import at_least
from prl.engines.base import Completion, Request
from prl.engines.torch import TorchEngine
from prl.errors import ConfigError
from prl.randomness import python_random


class MismatchedEngine(TorchEngine):
    """The torch engine with rounded weights, old weights, or a temperature that wanders; each on its own or together.

    What it records is the distribution that it sampled, as a real engine would, so the
    importance ratios show the mismatch. Seeded by the requests' keys, like the rest.

    Args:
      bits: weights of every matrix are rounded to that many bits, symmetrically, one scale per
        output channel (8 and 4 are what int8 and int4 inference do); None leaves them.
      lag: load what the trainer had so many loads ago; the first one is held until there is an older one.
      temperature_jitter: standard deviation of the log of the factor by which each request's temperature is off.

    Raises:
      ConfigError: bits below 2, a negative lag or jitter, or nothing that differs.
    """

    def __init__(
        self, module: nn.Module, *, bits: int | None = None, lag: int = 0, temperature_jitter: float = 0.0
    ) -> None:
        at_least("MismatchedEngine", 0, lag=lag)
        if bits is not None:
            at_least("MismatchedEngine", 2, bits=bits)
        if not temperature_jitter >= 0 or (bits is None and not lag and not temperature_jitter):
            raise ConfigError(
                f"MismatchedEngine: got bits={bits}, lag={lag}, temperature_jitter={temperature_jitter}; need at least "
                "one that differs, and no negative one. TorchEngine is the engine without mismatch."
            )
        super().__init__(module)
        self._bits, self._jitter = bits, temperature_jitter
        first = {name: tensor.detach().clone() for name, tensor in self._module.named_parameters()}
        self._past = deque([(first, self.version)], maxlen=lag + 1)
        super().load_weights(self._rounded(first), self.version)

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """As TorchEngine's, at the temperatures that this engine really has."""
        return await super().generate([self._jittered(request) for request in requests])

    def load_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Keep the weights, and load those of `lag` loads ago; completions carry the version that sampled them."""
        self._past.append(({name: tensor.detach().clone() for name, tensor in named_tensors}, version))
        tensors, version = self._past[0]
        super().load_weights(self._rounded(tensors), version)

    def _rounded(self, tensors: dict[str, Tensor]) -> list[tuple[str, Tensor]]:
        return [(name, t if self._bits is None else fake_quantise(t, self._bits)) for name, t in tensors.items()]

    def _jittered(self, request: Request) -> Request:
        if not self._jitter or request.sampling.temperature == 0:
            return request
        factor = math.exp(self._jitter * python_random((*request.key, "temperature")).gauss())
        temperature = request.sampling.temperature * factor
        return request._replace(sampling=request.sampling.model_copy(update={"temperature": temperature}))


def fake_quantise(weight: Tensor, bits: int) -> Tensor:
    """The weight rounded to integers of `bits` bits times a scale per row, symmetrically; vectors stay as they are.

    scale = max |row| / (2^(bits-1) - 1). A row of zeros stays zero.
    """
    if weight.ndim < 2:
        return weight
    levels = 2 ** (bits - 1) - 1
    scale = weight.abs().amax(-1, keepdim=True) / levels
    return torch.where(scale > 0, (weight / torch.where(scale > 0, scale, 1.0)).round() * scale, 0.0)
