"""Read-only numpy arrays: how the immutable types hold their streams."""

from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

Array: TypeAlias = Any
"""A field given as a list, a numpy array or a tensor, and held as a read-only numpy array."""


def frozen(values: Any, dtype: Any) -> np.ndarray:
    """A read-only 1-D or 2-D array of `dtype`; copies unless `values` is one already."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    if isinstance(values, np.ndarray) and values.dtype == dtype and not values.flags.writeable:
        return values
    array = np.array(values, dtype=dtype)
    array.flags.writeable = False
    return array


def same_tokens(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal token ids. The last one is looked at first: it is where two histories most often differ."""
    return len(a) == len(b) and (len(a) == 0 or (bool(a[-1] == b[-1]) and np.array_equal(a, b)))
