"""Tests that fail today, each with what is known of the cause. Shown as expected failures by every run; an entry goes when
its fault is mended. (The test's name, and a reason.)"""

from __future__ import annotations

OPEN: dict[str, str] = {}
