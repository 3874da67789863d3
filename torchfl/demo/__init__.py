"""The main job: train ResNet-50 on a chip and report what ran where.

`python -m torchfl.demo` (or `make demo`) runs the unmodified script examples/resnet50_digits.py and watches it from
outside.

Contract: the script is run as a user would run it; all measurements come from the engine's counters and from hooks that
PyTorch offers. `watch` measures, `figures` turns measurements into the report, `page` draws it; none of them imports
torch before it has to.
"""

from __future__ import annotations
