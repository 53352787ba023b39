"""The first page: short, and every command and line of code on it works."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize
from typer.main import get_command

from pipelines.__main__ import _app
from pipelines.config import load_config
from tests.house.tree import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
LINES = [
    line.split("#")[0].strip() for kind, block in BLOCKS if not kind for line in block.splitlines()
]
COMMANDS = [line for line in LINES if line.startswith("medclip ")]
OURS = {"ours.yaml", "labels.yaml"}  # the reader's own
TUTORIALS = sorted(
    {
        line.strip()
        for page in (ROOT / "docs").rglob("*.md")
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.strip().startswith("medclip ")
    }
)


def test_it_is_one_page() -> None:
    prose = re.sub(r"```.*?```|\]\([^)]*\)|[|]", " ", TEXT, flags=re.DOTALL)
    assert len(TEXT.splitlines()) <= 130
    assert len(prose.split()) <= 800
    assert len(COMMANDS) >= 9
    assert len(TUTORIALS) >= 10


@pytest.mark.parametrize("line", sorted({*COMMANDS, *TUTORIALS}))
def test_command_has_the_options_and_files_that_it_names(line, monkeypatch):
    _, name, *words = shlex.split(line, comments=True)
    if name == "demo":
        name, words = "run", ["demo", *words]
    group = get_command(_app())
    context = group.make_context("medclip", [name, *words])
    _, command, rest = group.resolve_command(context, [name, *words])
    values = command.make_context(name, rest, parent=context).params
    file = Path(values.get("config") or "")
    if name not in {"serve", "gateway"} and file.name not in {"", *OURS}:
        load_config(file, values.get("overrides") or ())


def test_the_loop_runs() -> None:
    (code,) = (block for kind, block in BLOCKS if kind == "python" and "_loss" in block)
    assert 8 <= len([line for line in code.splitlines() if line]) <= 11
    torch.manual_seed(0)
    names: dict[str, object] = {
        "bert": None,
        "tokenizer": None,
        "sentences": ["No pneumothorax.", "Left effusion."],
        "normalize": normalize,
        "image_encoder": torch.nn.Linear(8, 4),
        "text_encoder": torch.nn.Linear(6, 4),
        "logit_scale": torch.tensor(10.0),
        "loader": [(torch.randn(2, 8), torch.randn(2, 6), torch.tensor([0, 1]))],
    }
    imports, loop = code.split("\n\n", 1)
    exec(imports, names)
    names["pseudo_log_likelihood"] = lambda *_: torch.tensor([-5.0, -9.0])
    exec(loop, names)
    assert names["loss"].isfinite()  # type: ignore[attr-defined]
    assert names["text_encoder"].weight.grad is not None  # type: ignore[attr-defined]
