"""Descriptors in good/ load; their values, origins and warnings are what they say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from pydantic import BaseModel

from torchfl import hcd
from torchfl.hcd import model, reader

HERE = Path(__file__).parent
ENV = {"X1_LIB_PATH": "/opt/x1/lib", "X1_INCLUDE_PATH": "/opt/x1/include"}
GOOD = sorted(p.name for p in (HERE / "good").iterdir() if p.is_file())
LEGACY = {"npu_v2.hcd", "npu_v3.hcd", "x1_device.yaml", "x1_v2_device.yaml"}


def load(name, **env):
    return hcd.load(HERE / "good" / name, env={**ENV, **env})


@pytest.mark.parametrize("name", GOOD)
def test_good(name):
    descriptor = load(name)
    assert all(w.severity == "warning" for w in descriptor.warnings)
    assert bool(descriptor.warnings) == (name in LEGACY)
    assert json.loads(json.dumps(descriptor.lower())) == descriptor.lower()
    assert all(place.line > 0 and place.col > 0 for place in descriptor.origins.values())


@pytest.mark.parametrize("name", [n for n in GOOD if n not in LEGACY])
def test_the_json_schema_accepts_what_the_reader_accepts(name):
    schema = hcd.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    data = json.loads(json.dumps(_core(HERE / "good" / name)))
    jsonschema.validate(data, schema)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(constrants={}),
        lambda d: d["compute_units"]["fp16"].update(peak="25.6"),
        lambda d: d["compute_units"]["fp16"].update(peak=25.6),
        lambda d: d["memory"]["on_chip_cache"].update(size="8 GB/s"),
        lambda d: d["tensor"].update(supported_dtypes=["float17"]),
        lambda d: d["tensor"].update(on_unsupported_dtype="gpu"),
        lambda d: d["ops"][0].update(kernal="k"),
        lambda d: d["ops"][0]["where"].update(stride={"ins": [1]}),
        lambda d: d.update(hcd=2),
        lambda d: d.pop("hcd"),
    ],
)
def test_the_json_schema_refuses(change):
    data = _core(HERE / "good" / "full.hcd")
    data = json.loads(json.dumps(data))
    change(data)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, hcd.json_schema())


def _core(path):
    """The file's own data, read with the reader's YAML rules."""
    from torchfl.hcd import nodes
    from torchfl.hcd.diagnostics import Report

    return nodes.plain(nodes.read(str(path), str(path), Report()))


def test_full_uses_every_key_of_the_model():
    """So that a key added to the model gets into the sample (and with it into the schema and lowering tests)."""
    missing = []

    def visit(value, path):
        if isinstance(value, BaseModel):
            for name in type(value).model_fields:
                inner = getattr(value, name)
                if inner is None and (type(value).__name__, name) not in {("Op", "paths"), ("Op", "kernel")}:
                    missing.append((type(value).__name__, name))
                visit(inner, f"{path}.{name}")
        elif isinstance(value, dict):
            for k, v in value.items():
                visit(v, f"{path}.{k}")
        elif isinstance(value, list):
            for v in value:
                visit(v, path)

    full = load("full.hcd").model
    visit(full, "")
    sparse = {"Op", "Instruction", "OpPath", "Predicate", "ComputeUnit", "Cost", "MemoryLevel"}
    assert [m for m in missing if m[0] not in sparse] == []
    text = (HERE / "good" / "full.hcd").read_text()
    for cls in (model.Op, model.OpPath, model.Predicate, model.ComputeUnit, model.Cost, model.MemoryLevel):
        for name in reader._names(cls):
            assert f"{name}:" in text, f"{cls.__name__}.{name} is not in full.hcd"


def test_numbers():
    descriptor = load("numbers.hcd")
    assert descriptor.model.chip.name == "on"
    assert descriptor.model.chip.vendor == "no"
    assert descriptor.model.chip.description == "12:30:45"
    assert descriptor.model.constraints.max_elements == 10**9
    assert descriptor.model.constraints.max_batch_size == 17
    assert descriptor.model.constraints.max_sequence_length == 16
    plain = descriptor.extensions["x-plain"]
    assert plain == {
        "exponent": 1e9,
        "exponent_point": 1e9,
        "octal": 15,
        "leading_zero": 17,
        "negative": -3,
        "time": "12:30:45",
        "words": ["on", "off", "yes", "no", "y", "n"],
        "booleans": [True, True, False],
        "nulls": [None, None],
        "quoted": ["1", "true", "null"],
        "date": "2026-01-31",
        "version": "1.2.0",
        "under": "1_000",
        "point": [0.5, 5.0, 1.5],
        "anchor": {"k": 1},
        "alias": {"k": 1},
    }
    assert type(plain["negative"]) is int and type(plain["exponent"]) is float
    # What a plain YAML library makes of the same file, which is why there is a reader.
    naive = yaml.safe_load((HERE / "good" / "numbers.hcd").read_text())
    assert naive["x-plain"]["exponent"] == "1e9" and naive["x-plain"]["words"][0] is True


def test_first_walkthrough():
    descriptor = load("npu_v3.hcd")
    chip = descriptor.model
    assert chip.chip.device_type == "npu_v3"
    assert chip.compute_units.fp16.peak == 25_600_000_000_000
    assert chip.compute_units.int8.peak == 51_200_000_000_000
    assert chip.memory.on_chip_cache.size == 8 << 20
    assert chip.memory.on_chip_cache.bandwidth == 256 * 10**9
    assert chip.memory.off_chip_memory.size is None
    assert chip.tensor.supported_dtypes == ["float16", "int8", "bfloat16"]
    assert {w.code for w in descriptor.warnings} == {"HCD080", "HCD081", "HCD082"}
    lowered = descriptor.lower()
    assert lowered["memory_bytes"] is None and lowered["adapter_library"] is None and lowered["ops"] == []
    assert lowered["compute_units"]["bfloat16"]["unit"] == "fp16"


def test_second_walkthrough():
    descriptor = load("x1_device.yaml")
    lowered = descriptor.lower()
    assert (lowered["device_type"], lowered["variant"], lowered["name"]) == ("xpu", "x1", "X1-Edge")
    assert lowered["adapter"] == {
        "style": "pybind",
        "runtime": "/opt/x1/lib/x1_runtime.so",
        "header": "/opt/x1/include/x1_runtime.h",
        "kernels": None,
        "driver_version": "1.2.0",
    }
    assert lowered["memory_bytes"] == 4 << 30
    assert lowered["memory"]["off_chip_memory"]["bandwidth"] == 64 * 10**9
    assert lowered["compute_units"]["float16"]["peak"] == 12_800_000_000_000
    assert lowered["compute_units"]["float32"]["peak"] is None
    assert descriptor.model.constraints.max_threads_per_block == 1024
    assert descriptor.model.chip.features == ["tensor_core", "int8_quantization", "dynamic_shape"]
    assert lowered["fallback"]["default"] == "cpu"
    assert lowered["fallback"]["ops"] == {"aten::_softmax": "custom_softmax_x1"}
    conv = lowered["ops"][2]
    assert (conv["op"], conv["declared"], conv["kernel"]) == (
        "aten::convolution_overrideable",
        "aten::conv2d",
        "x1_conv2d",
    )
    assert conv["dtypes"] == {"*": ["float32", "float16", "int8"]}
    assert [(w["name"], w["op"], w["values"]) for w in conv["where"]] == [
        ("rank", "equals", [4]),
        ("transposed", "equals", [0]),
        ("stride", "in", [1, 2, 4]),
        ("padding", "in", [0, 1, 2]),
        ("groups", "in", [1, 2, 4]),
    ]


def test_the_second_walkthrough_with_the_documents_own_list(write):
    text = (
        (HERE / "good" / "x1_device.yaml").read_text().replace('["float32", "float16", "int8"]', '["float16", "int8"]')
    )
    lowered = hcd.load(write(text, "x1.yaml"), env=ENV).lower()
    assert lowered["ops"][2]["dtypes"] == {"*": ["float16", "int8"]}
    assert lowered["on_unsupported_dtype"] == "cpu"


def test_importing_and_reading_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from torchfl.hcd import load\n"
        f"load({str(HERE / 'good' / 'full.hcd')!r}, env={{}}).lower()\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent.parent), *sys.path])}
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True).stderr == ""
