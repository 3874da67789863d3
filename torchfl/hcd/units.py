"""Quantities with units, as integers of one base unit per dimension.

Contract: `parse(text, dimension)` returns a positive int in the base unit of the dimension, or raises `UnitError` with
a diagnostic code, a message and a hint. No other module multiplies by a power of ten or of two.

| dimension | base unit | written as |
|---|---|---|
| rate | operations per second | `FLOP/s`, `FLOPS`, `OP/s`, `OPS`, `MAC/s` (2 operations), with k M G T P E |
| bytes | byte | `B`, `KiB MiB GiB TiB` (powers of 1024), `kB KB MB GB TB` (powers of 1000) |
| bandwidth | byte per second | any of the above followed by `/s`; `Gbit/s` |
| frequency | hertz | `Hz kHz MHz GHz` |
| power | milliwatt | `uW mW W kW` |
| energy | femtojoule | `fJ pJ nJ uJ mJ J` |
| time | picosecond | `ps ns us ms s` |
"""

from __future__ import annotations

import difflib
import re
from fractions import Fraction
from typing import Literal

Dimension = Literal["rate", "bytes", "bandwidth", "frequency", "power", "energy", "time"]

_SI = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_QUANTITY = re.compile(r"([-+]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][-+]?[0-9]{1,2})?)\s*(\S.*)?")

EXAMPLES: dict[Dimension, str] = {
    "rate": "25.6 TFLOP/s",
    "bytes": "8 MiB",
    "bandwidth": "128 GB/s",
    "frequency": "1.2 GHz",
    "power": "15 W",
    "energy": "0.8 pJ",
    "time": "4 us",
}
_COMMON: dict[Dimension, str] = {
    "rate": "FLOP/s, OP/s or MAC/s with k, M, G, T, P or E before it",
    "bytes": "B, KiB, MiB, GiB, TiB (powers of 1024), kB, MB, GB, TB (powers of 1000)",
    "bandwidth": "kB/s, MB/s, GB/s, TB/s, KiB/s, MiB/s, GiB/s, Mbit/s, Gbit/s",
    "frequency": "Hz, kHz, MHz, GHz",
    "power": "mW, W, kW",
    "energy": "fJ, pJ, nJ, uJ, mJ, J",
    "time": "ps, ns, us, ms, s",
}
BASE: dict[Dimension, str] = {
    "rate": "op/s",
    "bytes": "B",
    "bandwidth": "B/s",
    "frequency": "Hz",
    "power": "mW",
    "energy": "fJ",
    "time": "ps",
}


class UnitError(ValueError):
    """A quantity that cannot be understood: diagnostic `code`, message, hint."""

    def __init__(self, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


def _table() -> dict[str, tuple[Dimension, Fraction]]:
    units: dict[str, tuple[Dimension, Fraction]] = {}
    for prefix, factor in _SI.items():
        for name in ("FLOP/s", "FLOPS", "OP/s", "OPS"):
            units[prefix + name] = ("rate", Fraction(factor))
        units[prefix + "MAC/s"] = ("rate", Fraction(2 * factor))
    sizes = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    sizes |= {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
    for name, factor in sizes.items():
        units[name] = ("bytes", Fraction(factor))
        units[name + "/s"] = ("bandwidth", Fraction(factor))
    for prefix in ("", "k", "M", "G", "T"):
        units[prefix + "bit/s"] = ("bandwidth", Fraction(_SI[prefix], 8))
    for prefix in ("", "k", "M", "G"):
        units[prefix + "Hz"] = ("frequency", Fraction(_SI[prefix]))
    for i, prefix in enumerate(("u", "m", "", "k")):
        units[prefix + "W"] = ("power", Fraction(1000**i, 1000))
    for i, prefix in enumerate(("f", "p", "n", "u", "m", "")):
        units[prefix + "J"] = ("energy", Fraction(1000**i))
    for i, prefix in enumerate(("p", "n", "u", "m", "")):
        units[prefix + "s"] = ("time", Fraction(1000**i))
    # The micro sign and the Greek letter are both met in data sheets.
    for name in [n for n in units if n.startswith("u")]:
        units["\u00b5" + name[1:]] = units["\u03bc" + name[1:]] = units[name]
    return units


UNITS = _table()
_FOLDED: dict[str, list[str]] = {}
for _name in UNITS:
    _FOLDED.setdefault(_name.lower(), []).append(_name)


def names(dimension: Dimension) -> list[str]:
    """The units of a dimension, in ASCII, smallest first as written in the table above."""
    return [n for n, (d, _) in UNITS.items() if d == dimension and n.isascii()]


def parse(text: str, dimension: Dimension) -> int:
    """`text` such as '25.6 TFLOP/s' in the base unit of `dimension`."""
    example = f"write it with its unit, such as '{EXAMPLES[dimension]}'"
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise UnitError("HCD020", f"'{text[:60]}' is not a quantity", example)
    number, unit = match.group(1), (match.group(2) or "").strip()
    if not unit:
        raise UnitError("HCD020", f"'{number}' has no unit", example)
    if unit not in UNITS:
        raise UnitError("HCD020", f"unknown unit '{unit[:30]}'", _unit_hint(unit, dimension))
    found, factor = UNITS[unit]
    if found != dimension:
        raise UnitError("HCD021", f"'{unit}' measures {_noun(found)}, not {_noun(dimension)}", example)
    exact = Fraction(number) * factor
    if exact <= 0:
        raise UnitError("HCD022", f"'{text.strip()}' is not positive", "leave the key out if the value is unknown")
    base = BASE[dimension]
    if dimension == "bytes" and exact.denominator != 1:
        raise UnitError("HCD023", f"'{text.strip()}' is not a whole number of bytes")
    value = round(exact)
    if value == 0:
        raise UnitError("HCD023", f"'{text.strip()}' is less than half of 1 {base}")
    if value >= 1 << 63:
        raise UnitError("HCD023", f"'{text.strip()}' does not fit in 64 bits of {base}")
    return value


def _noun(dimension: Dimension) -> str:
    return {"rate": "operations per second", "bytes": "a size"}.get(dimension, f"a {dimension}").replace(
        "a energy", "an energy"
    )


def _unit_hint(unit: str, dimension: Dimension) -> str:
    if unit.endswith("bps"):
        return "'bps' may mean bits or bytes: write GB/s or Gbit/s"
    same = [n for n in _FOLDED.get(unit.lower(), []) if UNITS[n][0] == dimension]
    if same:
        return f"did you mean '{same[0]}'? Units are case-sensitive"
    close = difflib.get_close_matches(unit[:20], names(dimension), n=4, cutoff=0.6)
    if close:  # of the spellings for a rate, the one that cannot be read as an amount
        return f"did you mean '{next((n for n in close if n.endswith('/s')), close[0])}'?"
    return f"units here: {_COMMON[dimension]}"
