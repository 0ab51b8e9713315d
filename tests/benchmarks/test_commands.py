"""python -m benchmarks: tables and files hold what was measured, errors are one line."""

import json

import pytest
import torch
from torch import nn

from benchmarks import growth, semigroups
from benchmarks.__main__ import NAMES, main, parse
from benchmarks._case import Case, Contender
from benchmarks.cost import SUITES
from benchmarks.pooling import FITTED, KINDS, POOLS, STUDIES, TRAINED, textures
from scalespaces.train._evaluate import METHODS


def small_case(settings):
    image = settings.tensor(1, 2, 8, 8)
    contenders = [Contender(n, settings.module(nn.Conv2d(2, 2, 3)), (image,), limit=1.0) for n in ("plain", "pyramid")]
    return Case("layers", f"{settings.format}, {torch.get_num_threads()} threads", contenders)


@pytest.fixture
def small(monkeypatch):
    """Suites of one small case each."""
    for name in SUITES:
        monkeypatch.setitem(SUITES, name, lambda settings: iter([small_case(settings)]))


def test_files_hold_what_the_tables_show(small, tmp_path, capsys):
    path = tmp_path / "a" / "cost.json"
    before = torch.get_num_threads()
    options = "--quick --suite models layers models --threads 2 --runs 3 --format contiguous"
    assert main(["cost", *options.split(), "--json", str(path)]) == 0
    assert torch.get_num_threads() == before
    out, err = capsys.readouterr()
    document = json.loads(path.read_text())
    first, second = document["results"]
    assert first["title"] == second["title"] == "contiguous, 2 threads"
    assert all(len(times) == 3 for row in first["contenders"] for times in row["seconds"].values())
    assert out.count("layers: contiguous, 2 threads") == 2
    assert document["environment"]["threads"] == 2
    assert document["options"]["format"] == "contiguous"
    assert "2 threads, torch" in out.splitlines()[0]
    assert "models: contiguous, 2 threads ..." in err
    assert [p.name for p in tmp_path.rglob("*.*")] == ["cost.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite", "others"], "invalid choice: 'others'"),
        (["--runs", "0"], "expected a whole number of at least 1, got '0'"),
        (["--suite", "layers", "--json", "."], "'.' is a folder; name a file in it"),
        (["--device", "cuda"], "--device cuda needs a GPU that PyTorch can use"),
    ],
)
def test_bad_arguments(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    try:
        code = main(["cost", *arguments])
    except SystemExit as exit:
        code = exit.code
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_every_benchmark_is_listed_and_has_defaults(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    needed = {"results": ["file.json"], "conversion": ["--images", "photos", "--work", "answers"]}
    needed |= {"pooling": ["--answers", "answers.json"], "reproduce": ["pcam", "--data", "folder"]}
    for name in NAMES:
        assert f"\n    {name}" in out
        assert parse([name, *needed.get(name, [])]).threads is None


def test_laws_of_semigroups(capsys, monkeypatch):
    monkeypatch.setattr(semigroups, "SIZE", 32)
    assert main(["semigroups"]) == 0
    lines = capsys.readouterr().out.splitlines()
    exact = next(line.split(" | ") for line in lines if "cascade | 0.25" in line)
    assert all(float(cell.strip(" |")) < 1e-12 for cell in exact[2:])
    assert sum(line.startswith("| ") for line in lines) == 1 + 3 * 6


def test_results_of_several_seeds(tmp_path, capsys):
    method = next(name for name, label in METHODS.items() if not label)
    files = []
    for seed, accuracy in enumerate((0.5, 0.7)):
        metrics = {"accuracy": accuracy, "nll": accuracy}
        rows = [{"model": "CNN", "method": method, "scale": 2.0, "metrics": metrics, "cost": 1.0}]
        files.append(tmp_path / f"{seed}.json")
        files[-1].write_text(json.dumps({"metric": "accuracy", "results": rows}))
    assert main(["results", *map(str, files)]) == 0
    assert "| CNN | 60.0 ± 14.1 | 1.0x |" in capsys.readouterr().out
    assert main(["results", *map(str, files), "--decimals", "2"]) == 0
    assert "| CNN | 60.00 ± 14.14 | 1.0x |" in capsys.readouterr().out
    assert main(["results", str(files[0]), "--metrics", "accuracy", "nll"]) == 0
    out = capsys.readouterr().out
    assert "In percent, one seed.\n\n|  | 2 | cost |\n|---|---|---|\n| CNN | 50.0 | 1.0x |" in out
    assert "One seed.\n\n|  | 2 | cost |\n|---|---|---|\n| CNN | 0.5 | 1.0x |" in out


def test_ways_to_combine_levels_from_kept_answers(tmp_path, capsys):
    answers = tmp_path / "answers.jsonl"
    rows = [
        {"data": data, "seed": seed, "way": way, "accuracy": {"0.5": 60.0 + 2 * seed, "1": 99.0, "2": 80.0}}
        for data in STUDIES
        for seed in range(3)
        for way in (*POOLS, FITTED, TRAINED)
    ]
    answers.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["pooling", "--answers", str(answers)]) == 0
    out = capsys.readouterr().out
    assert out.count("| 62.0 ± 2.0 | 99.0 ± 0.0 | 80.0 ± 0.0 | 71.0 ± 1.0 |") == 6 * len(STUDIES)


def test_textures_have_any_scale():
    fine, kinds = textures(2 * len(KINDS), 2.0, 63, seed=0, noise=0.0)
    coarse, _ = textures(2 * len(KINDS), 1.0, 32, seed=0, noise=0.0)
    torch.testing.assert_close(fine[..., ::2, ::2], coarse)
    assert kinds.unique().tolist() == list(range(len(KINDS)))
    assert all(not torch.equal(a, b) for a, b in zip(coarse[: len(KINDS)], coarse[len(KINDS) :], strict=True))


def test_growth_is_measured_along_three_axes_and_drawn(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(growth, "AXES", {"side": (32,), "levels": (2, 3), "width": (4,)})
    monkeypatch.setattr(growth, "USUAL", {"side": 32, "levels": 2, "width": 4})
    assert main(["growth", "--runs", "1", "--threads", "1", "--plot", str(tmp_path / "growth.png")]) == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line[2:3].isdecimal()]
    assert [row[0] for row in rows] == ["32", "2", "3", "4"]
    assert [row[2] for row in rows] == ["1.25", "1.25", "1.31", "1.25"]  # the limits of filters of one level
    assert all(float(row[4]) > float(row[2]) for row in rows)
    assert (tmp_path / "growth.png").stat().st_size > 10_000
