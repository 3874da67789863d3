"""Every symptom has a test that says its number, on every chip."""

import re
from pathlib import Path

LATER = {42}  # two processes that train together


def test_every_case_has_a_test_on_every_chip():
    found = set()
    for file in Path(__file__).parent.glob("test_cases_*.py"):
        source = file.read_text()
        groups = set(re.findall(r"^(\w+) = EveryChip\(", source, re.MULTILINE))
        for decorator, number in re.findall(r"^@(.+)\ndef test_case_(\d\d)_", source, re.MULTILINE):
            if decorator in groups or "CHIPS" in decorator:
                found.add(int(number))
    assert found == set(range(1, 49)) - LATER
