"""`torchfl doctor`: what is wrong with an installation, in plain words, and what to do about it.

Contract: a finding is one line, and each problem has a fix. What could bring a process down (native code, adapters,
vendor libraries) runs in another one (probe.py), so the doctor always comes to its end.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from torchfl._registry import FOLDERS, descriptors_in, folders
from torchfl._registry import chips as sources
from torchfl.cli.chips import descriptor_of, name_of, shipped
from torchfl.cli.console import note, out, out_json, plural
from torchfl.errors import LoadError

_PROBE_SECONDS = 120


@dataclass
class Finding:
    """One thing looked at. `warn` means that it works, though not as one would wish."""

    check: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    fix: str | None = None
    chip: str | None = None


def doctor(
    chip: Annotated[
        list[str] | None,
        typer.Option("--chip", "-c", metavar="CHIP", help="Examine this chip instead of the shipped ones."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object instead.")] = False,
) -> None:
    """Look whether everything is in place, and say what to do where it is not.

    \b
    Looks at Python, PyTorch, the native part, and each chip: descriptor, adapter, the SDK behind it, kernels that are
    named but not there, devices, and one addition on each.
    Exit status 1 if something is wrong.

    \b
    Examples:
      torchfl doctor
      torchfl doctor --chip mychip/mychip.yaml
      torchfl doctor --json
    """
    findings: list[Finding] = []
    for finding in _examine(chip or []):
        findings.append(finding)
        if not as_json:
            _print(finding)
    wrong = sum(f.status == "fail" for f in findings)
    if as_json:
        out_json({"ok": not wrong, "findings": [asdict(f) for f in findings]})
    else:
        note("everything is in place" if not wrong else f"{plural(wrong, 'problem')} found")
    if wrong:
        raise typer.Exit(1)


def _print(finding: Finding) -> None:
    first, *rest = finding.detail.splitlines() or [""]
    of = f"{finding.chip}: " if finding.chip else ""
    out(f"{finding.status:4}  {of}{finding.check}: {first}")
    for line in rest:
        out(f"      {line}")
    if finding.fix:
        out(f"      fix: {finding.fix}")


def _examine(chips: list[str]) -> Iterator[Finding]:
    yield Finding("Python", "ok", ".".join(map(str, sys.version_info[:3])))
    native, torch = _native(), _torch()
    yield native
    yield torch
    if native.status == "ok" and torch.status == "ok":
        yield _autoload()
    usable = []
    if not chips:
        yield from _folders()
    for name, descriptor in _chips(chips):
        finding, adapter = _descriptor(name, descriptor)
        yield finding
        if adapter is not None:
            yield adapter
            if adapter.status != "fail":
                usable.append((name, descriptor))
    if not chips and not shipped() and native.status == "ok":
        yield Finding("chips", "fail", "no chip is shipped with this installation", _REINSTALL)
    if native.status == "ok" and torch.status == "ok":
        yield from _probe(usable)


# ---------------------------------------------------------------------------------------------- the installation

_ASK = "import json, torch; from torchfl._autoload import state; print(json.dumps(state()))"


def _autoload() -> Finding:
    """What `import torch` alone gives, in a process of its own."""
    try:
        asked = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=_PROBE_SECONDS)
        trouble, names = json.loads(asked.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return Finding(
            "import torch", "fail", f"does not come to its end: {error}", "TORCHFL_AUTOLOAD=0 leaves it alone"
        )
    if trouble:
        return Finding(
            "import torch", "warn", f"gives no device by itself: {trouble}", "call torchfl.init() in your code"
        )
    return Finding("import torch", "ok", f"is enough for {', '.join(names) or 'no chip'}")


_REINSTALL = "in a checkout `make venv`; else `pip install --force-reinstall flagos-torchfl`"


def _native() -> Finding:
    from torchfl._paths import native_root

    try:
        root = native_root()
    except LoadError as error:
        return Finding("native part", "fail", str(error), _REINSTALL)
    if not list(root.glob("_C*.so")):
        return Finding("native part", "fail", f"{root} holds no _C*.so: it was built without PyTorch", _REINSTALL)
    return Finding("native part", "ok", str(root))


def _torch() -> Finding:
    """Compares versions without importing torch."""
    from importlib import metadata

    from torchfl._native import check_torch_version

    try:
        installed = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Finding("PyTorch", "fail", "not installed", "pip install 'torch==2.13.*'")
    try:
        check_torch_version()
    except LoadError as error:
        text, _, fix = str(error).partition(": ")
        return Finding("PyTorch", "fail", text, fix or _REINSTALL)
    return Finding("PyTorch", "ok", installed)


# ---------------------------------------------------------------------------------------------- chips


def _chips(named: list[str]) -> list[tuple[str, Path | LoadError]]:
    if not named:
        try:
            return [(name_of(source), source.path) for source in sources()]
        except LoadError:  # without a native part, which was told of
            return []
    found: list[tuple[str, Path | LoadError]] = []
    for chip in named:
        try:
            found.append((chip, descriptor_of(chip)))
        except LoadError as error:
            found.append((chip, error))
    return found


def _folders() -> Iterator[Finding]:
    for folder in folders():
        found = descriptors_in(folder)
        if found:
            yield Finding(FOLDERS, "ok", f"{folder}: {', '.join(path.name for path in found)}")
        else:
            fix = f"correct {FOLDERS}; `torchfl new NAME --style pybind` makes a folder to begin with"
            yield Finding(FOLDERS, "fail", f"No device YAML found in {folder}", fix)


def _descriptor(name: str, descriptor: Path | LoadError) -> tuple[Finding, Finding | None]:
    """What the descriptor says, and, if it can be read, whether there is an adapter."""
    from torchfl import hcd

    if isinstance(descriptor, LoadError):
        return Finding(
            "descriptor", "fail", str(descriptor), "`torchfl doctor` without --chip lists the shipped ones", name
        ), None
    try:
        read = hcd.load(descriptor)
    except hcd.DescriptorError as error:
        text = "\n".join(d.render() for d in error.diagnostics)
        return Finding(
            "descriptor", "fail", f"{descriptor} cannot be used\n{text}", "correct the lines named", name
        ), None
    lowered = read.lower()
    detail = f"{lowered['name']}, {plural(len(read.model.ops), 'operator')} declared"
    if read.warnings:
        text = "\n".join(d.render() for d in read.warnings)
        finding = Finding(
            "descriptor", "warn", f"{detail}\n{text}", f"torchfl show {descriptor} prints it without", name
        )
    else:
        finding = Finding("descriptor", "ok", detail, None, name)
    return finding, _adapter(name, lowered)


def _adapter(name: str, lowered: dict[str, Any]) -> Finding:
    from torchfl._engine import _has_adapter

    folder, device_type = Path(lowered["descriptor"]).parent, lowered["device_type"]
    if lowered["adapter"]["style"] == "pybind" and not _has_adapter(device_type, lowered):
        return _wrapper(name, lowered)
    if lowered["adapter_library"]:
        found = [Path(lowered["adapter_library"])]
        missing = f"{found[0]} does not exist"
    else:
        found = [*sorted(folder.glob(f"uba_{device_type}*.so")), *sorted(folder.glob(f"libuba_{device_type}*.so"))]
        missing = f"the descriptor names none, and there is no uba_{device_type}*.so in {folder}"
    if found and found[0].is_file():
        return Finding("adapter", "ok", str(found[0]), None, name)
    return Finding("adapter", "fail", missing, f"build it (torchfl build {folder}), or correct adapter.library", name)


def _wrapper(name: str, lowered: dict[str, Any]) -> Finding:
    """The vendor's library and the wrapper modules of a chip without an adapter."""
    from torchfl import _wrappers

    try:
        _wrappers.check(lowered)
    except LoadError as error:
        return Finding("adapter", "fail", str(error), "correct the descriptor, its variable, or the build", name)
    modules = _wrappers.modules_of(lowered)
    if modules:
        return Finding("adapter", "ok", ", ".join(map(str, modules)), None, name)
    folder = Path(lowered["descriptor"]).parent
    return Finding("adapter", "fail", f"no wrapper module in {folder}", f"build it: torchfl build {folder}", name)


# ---------------------------------------------------------------------------------------------- in another process


def _probe(chips: list[tuple[str, Any]]) -> Iterator[Finding]:
    """Loads and tries the chips; begins anew behind one that takes the process down."""
    names = {str(descriptor): name for name, descriptor in chips}
    pending = list(names)
    engine_told = False
    while pending or not engine_told:
        steps, end = _run_probe(pending)
        seen = [step["chip"] for step in steps if "chip" in step]
        for step in steps:
            if step["step"] == "engine" and engine_told:
                continue
            engine_told = engine_told or (step["step"] == "engine" and step["state"] != "begun")
            yield from _told(step, names)
        last = steps[-1] if steps else {"step": "engine", "state": "begun"}
        if end is None and last["state"] != "begun":
            return
        at = last.get("chip", seen[-1] if seen else None)
        yield _crash(last, end or "stopped early", names.get(at or ""))
        if last["step"] == "engine" or at not in pending:
            return
        pending = pending[pending.index(at) + 1 :]


def _run_probe(descriptors: list[str]) -> tuple[list[dict[str, Any]], str | None]:
    """The steps that a probe reported, and how it ended if not well."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        command = [sys.executable, "-m", "torchfl.cli.probe", str(report), *descriptors]
        end: str | None = None
        try:
            ran = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            end = f"hung for {_PROBE_SECONDS} s"
        else:
            if ran.returncode < 0:
                end = f"crashed ({signal.Signals(-ran.returncode).name})"
            elif ran.returncode > 0:
                end = f"ended with status {ran.returncode}"
            if end and ran.stderr.strip():
                end += ": " + ran.stderr.strip().splitlines()[-1]
        lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
    return [json.loads(line) for line in lines], end


def _told(step: dict[str, Any], names: dict[str, str]) -> Iterator[Finding]:
    """The findings in one report line of the probe."""
    if step["state"] == "begun":
        return
    name = names.get(step.get("chip", ""))
    failed = step["state"] == "failed"
    if step["step"] == "engine":
        if failed:
            yield Finding("engine", "fail", step["error"], _REINSTALL)
        else:
            yield Finding("engine", "ok", f"adapter interface {step['abi']}")
    elif step["step"] == "load":
        if failed:
            yield Finding("loading", "fail", step["error"], _loading_fix(step["error"]), name)
        else:
            yield from _loaded(step, name)
    elif failed:
        fix = "see the SDK's message; `torchfl run` with TORCH_FL_DEBUG=1 prints which kernel was used"
        yield Finding("addition", "fail", f"on {step['device']}: {step['error']}", fix, name)
    else:
        yield Finding("addition", "ok", f"right on {step['device']}, by the {step['path']} path", None, name)


def _loaded(step: dict[str, Any], name: str | None) -> Iterator[Finding]:
    sdk = f", SDK {step['sdk_version']}" if step["sdk_version"] else ""
    yield Finding("loading", "ok", f"adapter {step['adapter_version'] or 'of unknown version'}{sdk}", None, name)
    if step["missing_kernels"]:
        detail = f"named in the descriptor, not in the adapter: {', '.join(step['missing_kernels'])}"
        fix = "add them to the adapter's table, or remove their rows; until then those operators go elsewhere"
        yield Finding("kernels", "fail", detail, fix, name)
    if step["labels"]:
        yield Finding("devices", "ok", ", ".join(step["labels"]), None, name)
    else:
        fix = "check that the chip is there and its driver is loaded (the vendor's own tool says so)"
        yield Finding("devices", "fail", "the SDK reports none", fix, name)


def _loading_fix(error: str) -> str:
    if "cannot open shared object" in error or "needs a library" in error or "not found" in error:
        return 'put the SDK\'s library folder into LD_LIBRARY_PATH (for a simulated one: eval "$(torchfl sdk-env npu)")'
    if "undefined symbol" in error:
        return "build the adapter again against the SDK that is installed: torchfl build DIR"
    if "built for torch" in error:
        return "build the adapter again with this PyTorch: torchfl build DIR"
    return "the message names what to change; docs/adapter.md says what a loadable adapter is"


def _crash(step: dict[str, Any], end: str, name: str | None) -> Finding:
    during = {
        "engine": "opening the native part",
        "load": "loading the adapter",
        "add": f"adding on {step.get('device')}",
    }[step["step"]]
    if step["step"] == "engine":
        return Finding("engine", "fail", f"the process {end} while {during}", _REINSTALL)
    fix = "a fault in the adapter or its SDK: build with -g and run `gdb --args python -m torchfl.cli run --chip ...`"
    if step["state"] != "begun":
        during = "leaving the process"
    return Finding("process", "fail", f"the process {end} while {during}", fix, name)
