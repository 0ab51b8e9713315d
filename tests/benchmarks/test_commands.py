"""scalespaces bench: its tables and files hold what was measured, its errors are one line."""

import json
import sys
from functools import partial

import pytest
import torch
from command import fails
from scalespaces.bench._case import Axis, Case, Contender
from scalespaces.bench._report import Report
from scalespaces.bench.suites import GROWTH, SUITES
from torch import nn

from scalespaces.cli import build_parser, main

pytest.importorskip("matplotlib")


def small_case(settings, side=8):
    image = settings.tensor(1, 2, side, side)
    contenders = [Contender(n, settings.module(nn.Conv2d(2, 2, 3)), (image,), limit=1.0) for n in ("plain", "pyramid")]
    return Case("layers", f"{settings.dtype}, {torch.get_num_threads()} threads", tuple(contenders))


def small_axes(settings):
    cases = {side: partial(small_case, settings, side) for side in (8, 16)}
    yield Axis("layers", "small", "image size", cases)


@pytest.fixture
def small(monkeypatch):
    """Suites of one small case each."""
    for name in SUITES:
        monkeypatch.setitem(SUITES, name, lambda settings: iter([small_case(settings)]))
    for name in GROWTH:
        monkeypatch.setitem(GROWTH, name, small_axes)


def test_the_defaults():
    args = build_parser().parse_args(["bench"])
    assert (args.suite, args.dtype, args.device, args.format) == (None, "float32", "cpu", "channels_last")
    assert (args.growth, args.compile, args.quick) == (False, False, False)


def test_files_hold_what_the_tables_show(small, tmp_path, capsys):
    path, figure = tmp_path / "a" / "bench.json", tmp_path / "b" / "bench.png"
    before = torch.get_num_threads()
    options = [
        "--suite",
        "models",
        "layers",
        "models",
        "--threads",
        "2",
        "--runs",
        "3",
        "--dtype",
        "float64",
        "--growth",
    ]
    assert main(["bench", "--quick", *options, "--json", str(path), "--plot", str(figure)]) == 0
    assert torch.get_num_threads() == before
    out, err = capsys.readouterr()
    document = json.loads(path.read_text())
    report = Report.from_json(document)
    assert [result.title for result in report.results] == ["float64, 2 threads"] * 2
    for result in report.results:
        assert str(result) in out
        assert all(len(times) == 3 for row in result.rows for times in row.seconds.values())
    for growth in report.growth:
        assert str(growth) in out
    assert len(report.growth) == 2
    assert report.environment["threads"] == 2
    assert report.settings == {
        "suite": ["models", "layers"],
        "runs": 3,
        "quick": True,
        "growth": True,
        "compile": False,
        "dtype": "float64",
        "device": "cpu",
        "format": "channels_last",
    }
    assert f"torch {report.environment['torch']}" in out.splitlines()[0]
    assert "2 threads, float64, channels_last, 3 runs" in out.splitlines()[1]
    assert "models: float64, 2 threads ..." in err
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert f"wrote {path}" in out
    assert f"wrote {figure}" in out
    assert sorted(p.name for p in tmp_path.rglob("*.*")) == ["bench.json", "bench.png"]


def test_all_suites_by_default(small, tmp_path):
    pytest.importorskip("cv2")
    pytest.importorskip("h5py")
    path = tmp_path / "bench.json"
    assert main(["bench", "--quick", "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    assert document["settings"]["suite"] == list(SUITES)
    assert document["growth"] == []


def test_a_real_suite(capsys):
    pytest.importorskip("cv2")
    assert main(["bench", "--quick", "--suite", "lift"]) == 0
    out, err = capsys.readouterr()
    assert "OpenCV sepFilter2D" in out
    assert "lift: dense, direct, 4 levels of 3 x 48 x 64 ..." in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite", "others"], "invalid choice: 'others'"),
        (["--suite"], "expected at least one argument"),
        (["--runs", "0"], "expected a whole number of at least 1, got '0'"),
        (["--threads", "x"], "expected a whole number of at least 1, got 'x'"),
        (["--dtype", "int8"], "invalid choice: 'int8'"),
        (["--dtype", "bfloat16"], "OpenCV filters float32 and float64, got --dtype bfloat16"),
        (["--dtype", "bfloat16"], "leave the suite lift out with --suite layers models data"),
        (["--suite", "lift", "data", "--growth"], "--growth is measured in the suites layers and models"),
        (["--suite", "layers", "--json", "."], "'.' is a folder; name a file in it"),
        (["--suite", "layers", "--plot", "figure.docx"], "matplotlib writes"),
    ],
)
def test_bad_arguments(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in fails(capsys, "bench", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_no_gpu(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "--device cuda needs a GPU that PyTorch can use" in fails(capsys, "bench", "--device", "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    message = "the suite lift compares with what computes on the CPU, got --device cuda; use --suite layers models"
    assert message in fails(capsys, "bench", "--device", "cuda", "--suite", "lift")


@pytest.mark.parametrize(("module", "suite", "extra"), [("cv2", "lift", "bench"), ("h5py", "data", "train")])
def test_a_missing_extra_is_named(module, suite, extra, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    message = f"{module} is needed for this and is not installed; install it with: pip install 'scalespaces[{extra}]'\n"
    assert fails(capsys, "bench", "--suite", suite).endswith(message)


def test_what_does_not_compile_is_an_error(small, capsys, monkeypatch):
    def fail(*_):
        raise RuntimeError("no such\n graph\n\nand a long trace")

    monkeypatch.setattr("scalespaces.cli._bench.measure", fail)
    assert main(["bench", "--quick", "--suite", "layers", "--compile", "--threads", "1"]) == 2
    message = "with --compile, float32, 1 threads fails: no such graph; leave that out\n"
    assert capsys.readouterr().err.endswith(message)
    with pytest.raises(RuntimeError, match="a long trace"):
        main(["bench", "--quick", "--suite", "layers"])
