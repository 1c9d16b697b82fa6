r"""mkdocs hook that turns TeX formulas into MathML while the site is built.

Browsers show MathML without a script, so the pages need nothing from the network. `pymdownx.arithmatex` marks the
formulas; `\tag{n}` numbers a displayed equation.
"""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

FORMULA = re.compile(r'<(?P<tag>span|div) class="arithmatex">(?P<tex>.*?)</(?P=tag)>', re.DOTALL)
NUMBER = re.compile(r"\\tag\{([^}]*)\}")


def mathml(tex: str, display: bool) -> str:
    """Return the MathML of one formula; raises PluginError on TeX that cannot be converted."""
    try:
        return convert(tex, display="block" if display else "inline")
    except Exception as error:
        raise PluginError(f"cannot convert the formula {tex!r}: {error!r}") from error


def render(match: re.Match[str]) -> str:
    """Return the HTML that replaces one marked formula."""
    tex = html.unescape(match["tex"]).strip()
    tex = re.sub(r"^\\[(\[]|\\[)\]]$", "", tex).strip()
    if match["tag"] == "span":
        return mathml(tex, display=False)
    number = NUMBER.search(tex)
    formula = mathml(NUMBER.sub("", tex).strip(), display=True)
    label = f'<span class="equation-number">({html.escape(number[1])})</span>' if number else ""
    return f'<div class="equation">{formula}{label}</div>'


def on_page_content(content: str, **_: object) -> str:
    """Replace the formulas of a rendered page."""
    return FORMULA.sub(render, content)
