"""The result as one page: a matrix of entries by dtype and direction, coloured by path; hovering tells the reason.

Contract: self-contained, no script or font from elsewhere; every text from outside is escaped.
"""

from __future__ import annotations

from html import escape
from typing import Any

from torchfl.check.result import ORDER, Entry, Result

_COLOURS = {
    "native": "#1a7f4b",
    "composed": "#7cc47f",
    "custom": "#d8c14a",
    "cpu": "#e8944a",
    "unsupported": "#b8b8b8",
    "failed": "#c62f3b",
}

_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2rem; color: #222; background: #fff; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: 2px 8px; text-align: left; vertical-align: top; }
th { border-bottom: 1px solid #999; position: sticky; top: 0; background: #fff; }
td.cell { min-width: 5.5em; border: 1px solid #fff; cursor: default; }
td.failed { color: #fff; } td.native { color: #fff; }
td.number { text-align: right; }
tr:hover td.name { background: #eef; }
.filters label { margin-right: 1em; } .hidden { display: none; }
"""

_SCRIPT = """
const boxes = [...document.querySelectorAll('.filters input[type=checkbox]')];
const text = document.querySelector('.filters input[type=search]');
function show() {
  const wanted = new Set(boxes.filter(b => b.checked).map(b => b.value));
  for (const row of document.querySelectorAll('#matrix tbody tr'))
    row.classList.toggle('hidden', !wanted.has(row.dataset.path) || !row.dataset.name.includes(text.value));
}
for (const box of [...boxes, text]) box.addEventListener('input', show);
"""


def page(result: Result) -> str:
    dtypes = list(dict.fromkeys(dtype for entry in result.entries for dtype in entry.dtypes))
    colours = "\n".join(f"td.{path} {{ background: {colour}; }}" for path, colour in _COLOURS.items())
    title = escape(f"{result.chip}: conformance")
    parts = [
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f"<style>{_STYLE}{colours}</style></head><body><h1>{title}</h1>",
        f"<p>{escape(result.device)}, PyTorch {escape(result.torch)}, {len(result.entries)} entries of op_db</p>",
        _summary(result),
        _reasons(result),
        _unproven(result),
        '<p class="filters">',
        *(
            f'<label><input type="checkbox" value="{path}" checked> {path}</label>'
            for path in ORDER
            if result.summary()[path]
        ),
        '<input type="search" placeholder="name"></p>',
        '<table id="matrix"><thead><tr><th>entry</th>',
        *(f"<th>{escape(dtype)} {direction}</th>" for dtype in dtypes for direction in ("forward", "backward")),
        "</tr></thead><tbody>",
        *(_row(entry, dtypes) for entry in result.entries),
        f"</tbody></table><script>{_SCRIPT}</script></body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _row(entry: Entry, dtypes: list[str]) -> str:
    cells = []
    for dtype in dtypes:
        for direction in ("forward", "backward"):
            run = entry.dtypes.get(dtype, {}).get(direction)
            if entry.unsupported is not None:
                cells.append(_cell("unsupported", "unsupported", entry.unsupported))
            elif run is None:
                cells.append("<td></td>")
            else:
                cells.append(
                    _cell(run["path"], "xfail" if entry.xfail and not run["ok"] else run["path"], _why(run, entry))
                )
    name = escape(entry.name)
    return f'<tr data-path="{entry.path}" data-name="{name}"><td class="name">{name}</td>{"".join(cells)}</tr>'


def _cell(path: str, text: str, why: str) -> str:
    return f'<td class="cell {path}" title="{escape(why)}">{escape(text)}</td>'


def _why(run: dict[str, Any], entry: Entry) -> str:
    lines = [run["error"]] if run["error"] else []
    if entry.xfail and run["error"]:
        lines.append(f"expected: {entry.xfail}")
    lines += [f"on the CPU in part: {', '.join(run['left'])}"] if run["left"] else []
    lines += run["reasons"] + [f"compared: {weak}" for weak in run["weak"]]
    if not lines:
        lines = ["native: " + ", ".join(run["kernels"]) if run["kernels"] else "views only: nothing ran"]
    return "\n".join(lines)


def _summary(result: Result) -> str:
    counts = result.summary()
    rows = "".join(
        f'<tr><td class="cell {path}">{path}</td><td class="number">{counts[path]}</td>'
        f'<td class="number">{counts[path] / max(1, counts["entries"]):.1%}</td></tr>'
        for path in ORDER
    )
    return f"<table><thead><tr><th>path</th><th>entries</th><th>share</th></tr></thead><tbody>{rows}</tbody></table>"


def _reasons(result: Result) -> str:
    rows = "".join(
        f'<tr><td class="number">{len(row["entries"])}</td><td>{escape(row["reason"])}</td>'
        f"<td>{escape(', '.join(row['entries']))}</td></tr>"
        for row in result.reasons()
    )
    head = "<tr><th>entries</th><th>why they left the chip</th><th>which</th></tr>"
    return f"<details><summary>Reasons</summary><table>{head}{rows}</table></details>" if rows else ""


def _unproven(result: Result) -> str:
    rows = "".join(
        f"<tr><td>{escape(row['op'])} (line {row['line']})</td><td>{escape(row['dtype'])}</td>"
        f"<td>{escape(row['kernel'])}</td><td>{escape(row['reason'])}</td></tr>"
        for row in result.unproven()
    )
    head = "<tr><th>row</th><th>dtype</th><th>kernel</th><th>what happened instead</th></tr>"
    return f"<details><summary>Unproven rows</summary><table>{head}{rows}</table></details>" if rows else ""
