"""Quantities with units become integers of one base unit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchfl.hcd import units


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("25.6 TFLOP/s", "rate", 25_600_000_000_000),
        ("51.2 TOP/s", "rate", 51_200_000_000_000),
        ("51.2TOPS", "rate", 51_200_000_000_000),
        ("12.8 TMAC/s", "rate", 25_600_000_000_000),
        ("1e3 GFLOPS", "rate", 10**12),
        ("8 MiB", "bytes", 8 << 20),
        ("8 MB", "bytes", 8_000_000),
        ("64 KB", "bytes", 64_000),
        ("64 kB", "bytes", 64_000),
        ("64 KiB", "bytes", 65_536),
        ("0.5 KiB", "bytes", 512),
        ("4 GiB", "bytes", 4 << 30),
        ("128 GB/s", "bandwidth", 128 * 10**9),
        ("1 GiB/s", "bandwidth", 1 << 30),
        ("1024 Gbit/s", "bandwidth", 128 * 10**9),
        ("1.2 GHz", "frequency", 1_200_000_000),
        ("15 W", "power", 15_000),
        ("800 mW", "power", 800),
        ("0.8 pJ", "energy", 800),
        ("2 mJ", "energy", 2 * 10**12),
        ("4 us", "time", 4_000_000),
        ("4 \u00b5s", "time", 4_000_000),
        ("4 \u03bcs", "time", 4_000_000),
        ("1.5 ns", "time", 1500),
        ("+.5 s", "time", 5 * 10**11),
    ],
)
def test_values(text, dimension, value):
    assert units.parse(text, dimension) == value


@pytest.mark.parametrize(
    ("text", "dimension", "code"),
    [
        ("8", "bytes", "HCD020"),
        ("", "bytes", "HCD020"),
        ("MiB", "bytes", "HCD020"),
        ("8 mib", "bytes", "HCD020"),
        ("8 MiB/s", "bytes", "HCD021"),
        ("64 Gbps", "bandwidth", "HCD020"),
        ("0x10 B", "bytes", "HCD020"),
        ("nan B", "bytes", "HCD020"),
        ("inf TFLOP/s", "rate", "HCD020"),
        ("1e999 B", "bytes", "HCD020"),
        ("-1 B", "bytes", "HCD022"),
        ("0 us", "time", "HCD022"),
        ("0.5 B", "bytes", "HCD023"),
        ("1e-4 ps", "time", "HCD023"),
        ("9e18 KiB", "bytes", "HCD023"),
        ("1 " + "B" * 10_000, "bytes", "HCD020"),
    ],
)
def test_refused(text, dimension, code):
    with pytest.raises(units.UnitError) as caught:
        units.parse(text, dimension)
    assert caught.value.code == code
    assert len(caught.value.message) < 200


def test_hints():
    def hint(text, dimension):
        with pytest.raises(units.UnitError) as caught:
            units.parse(text, dimension)
        return caught.value.hint

    assert hint("8 mib", "bytes") == "did you mean 'MiB'? Units are case-sensitive"
    assert hint("1 TFLOP", "rate") == "did you mean 'TFLOP/s'?"
    assert "bits or bytes" in hint("1 Gbps", "bandwidth")
    assert "8 MiB" in hint("8", "bytes")


@given(st.integers(1, 10**6), st.sampled_from(sorted(units.UNITS)))
def test_every_unit_scales(number, unit):
    dimension, factor = units.UNITS[unit]
    exact = number * factor
    if exact >= 1 << 63 or exact < 1 or (dimension == "bytes" and exact.denominator != 1):
        return
    assert units.parse(f"{number} {unit}", dimension) == round(exact)
