"""The result as JUnit XML. Contract: a case for each entry, dtype and direction; a failure is what makes status 1."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from torchfl.check.result import Entry, Result

#: What XML 1.0 cannot hold.
_CONTROL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def document(result: Result, strict: bool) -> str:
    suite = ElementTree.Element("testsuite", name=f"torchfl check {result.chip}", time=f"{result.seconds:.1f}")
    for entry in result.entries:
        _entry(suite, entry, strict)
    for kind, tag in (("tests", "testcase"), ("failures", "testcase/failure"), ("skipped", "testcase/skipped")):
        suite.set(kind, str(len(suite.findall(tag))))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _entry(suite: ElementTree.Element, entry: Entry, strict: bool) -> None:
    if entry.unsupported is not None:
        case = ElementTree.SubElement(suite, "testcase", classname=entry.name, name="unsupported")
        ElementTree.SubElement(case, "skipped", message=_clean(entry.unsupported))
        return
    for dtype, direction, run in entry.runs():
        case = ElementTree.SubElement(suite, "testcase", classname=entry.name, name=f"{dtype} {direction}")
        left = run["ran"] == "cpu" and strict and not entry.xfail
        if not run["ok"] and entry.xfail:
            ElementTree.SubElement(case, "skipped", message=_clean(f"xfail: {entry.xfail}: {run['error']}"))
        elif not run["ok"]:
            ElementTree.SubElement(case, "failure", message=_clean(run["error"]))
        elif left:
            ElementTree.SubElement(case, "failure", message=_clean("; ".join(["ran on the CPU", *run["reasons"]])))
        if run["reasons"]:
            ElementTree.SubElement(case, "system-out").text = _clean("\n".join(run["reasons"]))


def _clean(text: str) -> str:
    return _CONTROL.sub("?", text)
