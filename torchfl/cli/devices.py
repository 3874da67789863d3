"""`torchfl devices`: the devices of all chips that can be used here."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from torchfl.cli.chips import bytes_text, load_all
from torchfl.cli.console import console, fail, note, out_json, table


def devices(
    chip: Annotated[
        list[str] | None,
        typer.Option("--chip", "-c", metavar="CHIP", help="Only this chip: name, descriptor or folder."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects instead.")] = False,
) -> None:
    """List the devices: what to write after device=, and what each one is.

    \b
    Without --chip: the chips in TORCHFL_CHIPS, else every shipped one that can be loaded.
    Exit status 1 if there is no device.

    \b
    Examples:
      torchfl devices
      torchfl devices --chip mychip/mychip.yaml
      torchfl devices --json
    """
    import torchfl

    loaded, refused = load_all(chip or [])
    by_label = {label: c for c in loaded for label in c.labels}
    rows = [_row(facts, by_label[facts["label"]]) for facts in torchfl.devices()]
    for name, why in refused.items():
        note(f"{name}: not usable: {why}")
    if as_json:
        out_json(rows)
    elif rows:
        shown = table("device", "chip", "SDK", "adapter", "memory", "busy", "power", "temperature")
        for row in rows:
            shown.add_row(*(_text(row)))
        console().print(shown)
    if not rows:
        fail("no device: run `torchfl doctor`, which says what is wrong")


def _row(facts: dict[str, Any], chip: Any) -> dict[str, Any]:
    telemetry = facts.get("telemetry") or {}
    known = {key: value if value is not None and value >= 0 else None for key, value in telemetry.items()}
    return {
        "device": facts["label"],
        "index": facts["index"],
        "chip": facts["chip"],
        "name": facts["name"],
        "serial": facts["serial"],
        "sdk_version": chip.sdk_version or None,
        "adapter": chip.adapter,
        "adapter_version": chip.adapter_version or None,
        "abi": chip.abi,
        "descriptor": chip.descriptor,
        "memory_bytes": facts["total_memory"] or None,
        "unified_memory": facts["host_accessible"],
        "alignment": facts["alignment"],
        "compute_units": facts["compute_units"] or None,
        "clock_mhz": facts["clock_mhz"] or None,
        "dtypes": facts["dtypes"] or None,
        "product_dtypes": facts["product_dtypes"] or None,
        "max_threads": facts["max_threads"] or None,
        "utilization": known.get("utilization"),
        "power_watts": known.get("power"),
        "temperature_celsius": known.get("temperature"),
    }


def _text(row: dict[str, Any]) -> list[str]:
    from rich.markup import escape

    busy, power, heat = row["utilization"], row["power_watts"], row["temperature_celsius"]
    return [
        escape(text)
        for text in (
            row["device"],
            row["chip"] if row["name"] in ("", row["chip"]) else f"{row['chip']}: {row['name']}",
            row["sdk_version"] or "?",
            row["adapter_version"] or "?",
            bytes_text(row["memory_bytes"]),
            "?" if busy is None else f"{busy:.0%}",
            "?" if power is None else f"{power:.1f} W",
            "?" if heat is None else f"{heat:.0f} °C",
        )
    ]
