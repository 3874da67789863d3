"""Between the engine and the composer: a chip as the composer sees it, and programs as the engine reads them.

Contract: `install` is called once, when the first chip is loaded. The engine calls `_compose` under the GIL, once for a
signature that has no kernel; whatever goes wrong there is a reason to take the next path, never an error of the user's
call. torchfl.compose is imported at the first such call, not before.
"""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from torchfl import __version__
from torchfl.hcd import terms

if TYPE_CHECKING:
    from torchfl.compose.program import Program


class ChipTarget:
    """What one chip can run, in the composer's terms (torchfl.compose.recorder.Target)."""

    def __init__(self, engine: ModuleType, index: int, lowered: dict[str, Any]) -> None:
        self._engine = engine
        self._index = index
        self.max_rank: int = lowered["max_rank"] or 64
        self._ops = {row["op"] for row in lowered["ops"]}
        self._chip_dtypes = set(lowered["dtypes"])
        #: instruction -> for each row, dtypes by argument
        self._instructions: dict[str, list[dict[str, set[str]]]] = {}
        for row in lowered["instructions"]:
            name = row["op"].partition("::")[2]
            self._instructions.setdefault(name, []).append({a: set(d) for a, d in row["dtypes"].items()})
        # The host has a copy for every chip, by the adapter's copy_nd.
        self._instructions.setdefault("copy_nd", [{"*": set(terms.DTYPES)}])
        self._asked: dict[Any, bool] = {}
        self.fingerprint = _fingerprint(lowered, engine.kernel_names(index))

    def native(self, op: torch._ops.OpOverload, args: Any, kwargs: Any) -> bool:
        """Whether a kernel of the chip takes the call as it is: without conversion of a dtype."""
        name = op._schema.name
        if name not in self._ops:
            return False
        overload = op._schema.overload_name
        try:
            answer = self._engine.explain(name, overload, _closed(args), _closed(kwargs), self._index)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return False
        return bool(answer["path"] == "native" and not answer["transforms"])

    def instruction(self, name: str, dtypes: tuple[torch.dtype, ...]) -> bool:
        """Whether the chip has the instruction for operands of `dtypes`; for vcast: source and result."""
        key = (name, dtypes)
        if key not in self._asked:
            names = [str(d).removeprefix("torch.") for d in dtypes]
            if name == "vcast":
                self._asked[key] = names[-1] in self._chip_dtypes and self._takes(name, names[0])
            else:
                self._asked[key] = all(self._takes(name, n) for n in names)
        return self._asked[key]

    def _takes(self, name: str, dtype: str) -> bool:
        return any(dtype in row["*"] for row in self._instructions.get(name, ()))


def _closed(x: Any) -> Any:
    """Numbers that a program leaves open, at their value in this call: a decision asks for no more of them."""
    from torchfl.compose.numbers import value_of

    if isinstance(x, dict):
        return {k: _closed(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x)(_closed(e) for e in x)
    return value_of(x)


def _fingerprint(lowered: dict[str, Any], kernels: list[str]) -> str:
    """Of everything besides a call that its program depends on: what the chip has, and who composes."""
    facts = {key: lowered[key] for key in ("ops", "instructions", "dtypes", "max_rank", "alignment", "attention")}
    text = json.dumps([facts, sorted(kernels), torch.__version__, __version__, _sources()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def _sources() -> str:
    """Of the composer itself, so that work on it never meets programs of an earlier state."""
    folder = Path(__file__).parent / "compose"
    digest = hashlib.sha256()
    for path in [Path(__file__), *sorted(folder.rglob("*.py"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _constant(data: list[Any], dtype: torch.dtype, sizes: list[int]) -> torch.Tensor:
    """Elements as programs write them: non-finite ones by name, complex ones as pairs."""
    plain = [float(x["float"]) if isinstance(x, dict) else x for x in data]
    if dtype.is_complex:
        real = torch.float64 if dtype == torch.complex128 else torch.float32
        return torch.view_as_complex(torch.tensor(plain, dtype=real).reshape(-1, 2)).to(dtype).reshape(sizes)
    return torch.tensor(plain, dtype=dtype).reshape(sizes)


def _let_go(error: BaseException | None) -> None:
    """Tracebacks know frames, and those their callers': a guard that a caller holds in a variable (as printing a tensor
    does) would live on until the garbage collector comes."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _loses_precision(program: Program) -> str:
    """Why a program may not stand for a call in double precision: it would compute a part in less. A wrong number is
    worse than a slower path, so this is looked at whatever the composer says."""
    values = program.values
    if not any(values[i.value].dtype in ("float64", "complex128") for i in program.inputs):
        return ""
    results = {values[o].dtype for o in program.outputs if o is not None} | {
        values[program.inputs[i].value].dtype for _, i in program.writes
    }
    for step in program.steps:
        if step.op == "uba::vcast" and values[step.args[0]["value"]].dtype == "float64":
            narrow = values[step.outs[0]].dtype if step.outs[0] is not None else ""
            if narrow in ("float32", "float16", "bfloat16") and narrow not in results:
                return f"a part of it would be computed in {narrow}"
    return ""


def install(engine: ModuleType, lowered_of: dict[str, dict[str, Any]]) -> None:
    """Have `engine` compose; `lowered_of`: device type of each loaded chip -> its descriptor, lowered."""
    composers: dict[tuple[int, str], Any] = {}

    def _compose(name: str, overload: str, args: list[Any], index: int) -> str | tuple[dict[str, Any], list[Any]]:
        from torchfl.compose.cache import ProgramCache
        from torchfl.compose.composer import Composer
        from torchfl.compose.instructions import register_library
        from torchfl.compose.trace import NotComposable

        namespace, _, base = name.partition("::")
        if namespace != "aten":
            return f"{name} is no operator of the set that programs are made for"
        register_library()  # the engine looks up the schema of each step
        # What integers divide into is up to the default dtype, which no argument tells.
        default = str(torch.get_default_dtype())
        if (index, default) not in composers:
            target = ChipTarget(engine, index, lowered_of[engine.label(index).partition(":")[0]])
            composers[index, default] = Composer(target, ProgramCache(f"{target.fingerprint} {default}"))
        packet = getattr(torch.ops.aten, base)
        op = getattr(packet, overload or "default")
        plain = [i for i, a in enumerate(op._schema.arguments) if not a.kwarg_only]
        kwargs = {a.name: args[i] for i, a in enumerate(op._schema.arguments) if a.kwarg_only}
        with _disable_current_modes(), torch.no_grad():
            try:
                program = composers[index, default].program(op, [args[i] for i in plain], kwargs)
            except NotComposable as reason:
                text = str(reason)
                _let_go(reason)
                return text
            lossy = _loses_precision(program)
            if lossy:
                return lossy
            constants = []
            for constant in program.constants:
                value = program.values[constant.value]
                constants.append((constant.value, _constant(constant.data, getattr(torch, value.dtype), value.sizes)))
        return program.to_dict(), constants

    engine.set_composer(_compose)


__all__ = ["ChipTarget", "install"]
