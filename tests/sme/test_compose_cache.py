"""Programs are traced once: kept in memory, on disk, between processes, and never believed when damaged."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from composing import ALL, Chip, aten
from helpers import run_script

from torchfl.compose.cache import ProgramCache, default_folder, fingerprint
from torchfl.compose.composer import Composer, signature
from torchfl.compose.trace import NotComposable

X = torch.randn(3, 4)


def composer(folder: Path, print_: str = "chip") -> Composer:
    return Composer(ALL, ProgramCache(fingerprint(print_), folder))


def test_a_second_composer_traces_nothing(tmp_path: Path) -> None:
    first = composer(tmp_path)
    made = first.program(aten.gelu.default, [X], {})
    assert first.program(aten.gelu.default, [X], {}) is made
    assert first.traces == 1
    second = composer(tmp_path)
    assert second.program(aten.gelu.default, [X], {}) == made
    assert second.traces == 0 and second.cache is not None and second.cache.hits == 1


def test_other_numbers_need_no_trace_but_those_a_program_depends_on_do(tmp_path: Path) -> None:
    c = composer(tmp_path)
    for value in (0.1, 0.2, 0.3):
        c.program(aten.addcdiv.default, [X, X, X], {"value": value})
    assert c.traces == 1
    for exponent in (2, 3, 2):
        c.program(aten.pow.Tensor_Scalar, [X, exponent], {})
    assert c.traces == 3
    again = composer(tmp_path)
    again.program(aten.pow.Tensor_Scalar, [X, 3], {})
    again.program(aten.pow.Tensor_Scalar, [X, 2], {})
    assert again.traces == 0


def test_refusals_are_kept() -> None:
    c = Composer(ALL)
    for _ in range(2):
        with pytest.raises(NotComposable):
            c.program(aten.nonzero.default, [X], {})
    assert c.traces == 1


def test_memory_is_bounded() -> None:
    c = Composer(ALL, most=8)
    for n in range(1, 20):
        c.program(aten.neg.default, [torch.empty(n)], {})
    assert len(c._kept) == 8


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"key": 1}', b"\xff\xfe", b'{"key": "x", "programs": [{"format": 99}]}']
)
def test_damaged_files_are_as_good_as_absent(tmp_path: Path, damage: bytes) -> None:
    first = composer(tmp_path)
    made = first.program(aten.neg.default, [X], {})
    (file,) = tmp_path.glob("*/*.json")
    file.write_bytes(damage)
    second = composer(tmp_path)
    assert second.program(aten.neg.default, [X], {}) == made
    assert second.traces == 1
    assert composer(tmp_path).program(aten.neg.default, [X], {}) == made


def test_another_target_or_signature_is_another_key(tmp_path: Path) -> None:
    composer(tmp_path).program(aten.neg.default, [X], {})
    other = composer(tmp_path, "another chip")
    other.program(aten.neg.default, [X], {})
    other.program(aten.neg.default, [X.t()], {})
    assert other.traces == 2
    assert signature(aten.add.Tensor, [X, X], {"alpha": 2.0}) == signature(aten.add.Tensor, [X, X], {"alpha": 3.0})
    assert signature(aten.add.Tensor, [X, X], {"alpha": 2.0}) != signature(aten.add.Tensor, [X, X], {"alpha": 2})
    assert signature(aten.sum.dim_IntList, [X, [0]], {}) != signature(aten.sum.dim_IntList, [X, [1]], {})


def test_the_size_is_bounded(tmp_path: Path) -> None:
    cache = ProgramCache("chip", tmp_path, most_bytes=20_000)
    program = Composer(Chip()).program(aten.gelu.default, [X], {})
    for n in range(60):
        cache.put("aten.gelu.default", str(n), [program])
    cache.trim()
    assert sum(f.stat().st_size for f in tmp_path.glob("*/*")) <= 20_000
    assert cache.get("aten.gelu.default", "59")


def test_no_folder_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHFL_CACHE_DIR", "")
    assert default_folder() is None
    c = Composer(ALL, ProgramCache("chip"))
    c.program(aten.neg.default, [X], {})
    assert c.traces == 1
    monkeypatch.setenv("TORCHFL_CACHE_DIR", str(tmp_path))
    assert default_folder() == tmp_path / "programs"
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    Composer(ALL, ProgramCache("chip", blocked)).program(aten.neg.default, [X], {})


_WORK = """
import sys
sys.path[:0] = sys.argv[2:]
import torch
from composing import ALL, aten
from pathlib import Path
from torchfl.compose.cache import ProgramCache, fingerprint
from torchfl.compose.composer import Composer
for round in range(5):
    c = Composer(ALL, ProgramCache(fingerprint("chip"), Path(sys.argv[1])))
    for n in range(1, 13):
        p = c.program(aten.gelu.default, [torch.empty(n)], {})
        assert p.values[0].sizes == [n]
print("traces", c.traces)
"""


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[1])
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: run_script(_WORK, str(tmp_path), tests, *sys.path[:1]), range(2)))
    for one in done:
        assert one.code == 0 and "traces 0" in one.out, one.err
    assert not list(tmp_path.glob("*/.*"))
