"""Test structures and likelihoods of your own by the conformance suites that ours pass.

Inherit a suite in a test file, write the few methods that it names, and pytest runs every check. pytest is imported
here and nowhere else in the package (`pip install "marquis[testing]"`).

Example:
    ```python
    from marquis.testing import LikelihoodConformance


    class TestPoisson(LikelihoodConformance):
        shapes, small = ((3, 2), (4,)), (2, 2)

        def likelihood(self): ...  # the object under test
        def reference(self, f, y): ...  # its log density by other means
        def support(self, f): ...  # all labels and their probabilities
    ```
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("marquis.testing.likelihoods", "marquis.testing.structures")

from marquis.testing.likelihoods import LikelihoodConformance, all_labels, autograd_hessian  # noqa: E402
from marquis.testing.structures import LAYOUTS, STANDARD, StructureConformance  # noqa: E402
from marquis.testing.tools import close, flat, normal, random_psd, seeded  # noqa: E402

__all__ = [
    "LAYOUTS",
    "STANDARD",
    "LikelihoodConformance",
    "StructureConformance",
    "all_labels",
    "autograd_hessian",
    "close",
    "flat",
    "normal",
    "random_psd",
    "seeded",
]
