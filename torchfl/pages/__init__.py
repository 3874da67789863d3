"""What reports that are pages share: one look in light and dark, colours of the paths, and how figures are written.

Contract: pages are self-contained: no scripts, no fonts, nothing fetched. Templates of a package find `style.css` and
`parts.html` (macros `tile` and `share`) beside their own. Every text from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2

#: Paths with a colour of their own; others share one.
PATHS = ("native", "composed", "composite", "custom", "cpu", "transfer")


def environment(package: str, escape: bool = True) -> jinja2.Environment:
    """For the templates in `package`'s folder `templates`; `escape` is for HTML."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(package, "templates"), jinja2.PackageLoader(__name__, "templates")]
        ),
        autoescape=escape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(size=size, percent=percent)
    made.globals["path_class"] = lambda path: path if path in PATHS else "other"
    return made


def stacked(paths: Sequence[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Segments of a bar that is 100 wide; a share that exists is never too thin to be seen."""
    out, x = [], 0.0
    for row in paths:
        width = row[key] * 100
        if row[key] > 0:
            out.append({"path": row["path"], "x": round(x, 3), "width": round(max(width, 0.4), 3)})
        x += width
    return out


def size(count: float) -> str:
    """Bytes for people: 16384 -> "16.0 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError  # the loop returns


def percent(share: float) -> str:
    """A share as text that never rounds something to nothing, or nearly all to all."""
    if share == 0 or share == 1:
        return f"{share:.0%}"
    if share < 0.001:
        return "<0.1%"
    return ">99.9%" if share > 0.999 else f"{share:.1%}"
