"""Uncertainty in neural networks from the curvature of their loss."""

from __future__ import annotations

__version__ = "0.1.0"
