"""What may have stood at the missing entries of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class ImputedTable:
    """A table with its holes filled, and how sure that is; observed entries are exactly as they were.

    Attributes:
        mean: `[rows, columns]`; a pandas table if `X` was one.
        std: Standard deviation of the missing value, from not knowing the network and from the noise; 0 where an entry
            was observed. In the form of `mean`.
        samples: `[samples, rows, columns]`: complete tables, each a draw of the missing values with its noise.
        missing: `[rows, columns]`, True where an entry was missing.
    """

    mean: Any
    std: Any
    samples: np.ndarray
    missing: np.ndarray
