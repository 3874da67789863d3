"""The example service that swaps its model while requests go on. Times are printed there, and judged nowhere."""

import json

from helpers import ROOT, run_script


def test_answers_stay_right_and_nothing_is_left_behind():
    ran = run_script(
        """
import runpy, sys
import torchfl
torchfl.load("x1")
script, *sys.argv[1:] = sys.argv[1:]
runpy.run_path(script, run_name="__main__")
""",
        str(ROOT / "examples" / "hot_swap.py"),
        *("--device", "xpu", "--swaps", "40", "--pause", "0.01", "--seconds", "0.5", "--json"),
    )
    assert ran.code == 0, ran.out + ran.err
    report = json.loads(ran.out)
    assert report["answers_wrong"] == 0 and report["answers_checked"] > 3
    assert all(report["phases"][phase]["requests"] > 5 for phase in ("before", "during", "after"))
    first, last = report["device_bytes"]
    assert last <= first + (8 << 20), report["device_bytes"]
    first, last = report["resident_bytes"]
    assert last < first * 1.05, report["resident_bytes"]
