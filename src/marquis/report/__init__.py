"""Report on trained autoencoders: one HTML page that needs no other file, and its figures as PNGs."""

from __future__ import annotations

from marquis.report import figures
from marquis.report.comparison import Comparison, write_comparison
from marquis.report.html import Page
from marquis.report.run_report import write_report
from marquis.report.study import Effort

__all__ = ["Comparison", "Effort", "Page", "figures", "write_comparison", "write_report"]
