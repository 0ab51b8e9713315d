"""What the README shows works."""

import re
from pathlib import Path

import pytest
import torch

from scalespaces.cli import build_parser

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_ten_lines_run():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert names["logits"](torch.rand(2, 3, 128, 96)).shape == (2, 10, 64, 48)


def test_commands_parse():
    commands = [line.split("#")[0].split()[1:] for line in README.splitlines() if line.startswith("scalespaces ")]
    assert commands
    for command in commands:
        if "--help" not in command:
            assert build_parser().parse_args(command).run


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/sampling.md"])
def test_links_lead_somewhere(page):
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert target.startswith("https://") or (path.parent / target).exists(), target
