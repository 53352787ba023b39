"""One command over everything: its help, its exit codes, what a run shows on and off a terminal."""

import json
import os
import pty
import re
import socket
import subprocess
import sys
import tomllib
from contextlib import suppress
from itertools import chain
from pathlib import Path

import pytest

import medclip_dcl
from pipelines.__main__ import COMMANDS, main
from pipelines.config import Config
from pipelines.run import _launcher
from pipelines.stages import HEADINGS
from tests.house.tree import ROOT
from tests.support import forkserver
from tests.support.processes import options

STAGES = 'jobs=["generate_studies","build_manifest"]'
SMALL = options([STAGES, "generate.patients=4", "generate.size_px=64", "workers=1"])


def test_help_names_every_command_below_its_heading_and_loads_no_library(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    headings = [line.split()[1:-1] for line in lines if line.startswith("╭")]
    assert [" ".join(words) for words in headings] == ["Options", *HEADINGS]
    listed = [line.split()[1] for line in lines if re.match(r"│ [a-z]", line)]
    assert listed == [*chain(*COMMANDS.values())]
    assert len(lines) <= 72
    look = (
        "import sys; from pipelines.__main__ import main; main(['--help']);"
        "sys.exit(bool({'torch', 'numpy', 'pydantic', 'yaml'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", look], cwd=ROOT, check=False).returncode == 0


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"medclip-dcl {medclip_dcl.__version__}\n"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert medclip_dcl.__version__ == project["version"]


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("ask retrieve --target text", 2, "one of the arguments --text --image is required"),
        ("ask classify FOLDER", 2, "is a folder; name an image, or write a row for each"),
        ("ask classify FOLDER", 2, "with `medclip ask classify FOLDER --csv FILE`"),
        ("evaluate --config demo --set work=FOLDER", 4, "evaluate: no "),
        ("evaluate --config nowhere.yaml", 2, "nowhere.yaml does not exist"),
        ("evaluate", 2, "--config"),
        ("show FOLDER", 4, ""),
        ("show FOLDER/nosuch", 4, "nosuch is neither the folder of a run nor a config"),
    ],
)
def test_what_is_missing_has_the_exit_code_of_the_stage(capsys, tmp_path, line, code, said):
    assert main(line.replace("FOLDER", str(tmp_path)).split()) == code
    assert said in capsys.readouterr().err


def test_studies_are_not_generated_over_a_folder_of_someone_else(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/note.txt").write_text("mine")
    words = options([f"work={tmp_path / 'work'}", f"source.root={tmp_path / 'real'}"])
    assert main(["generate_studies", "--config", "demo", *words, *SMALL]) == 4
    assert [item.name for item in (tmp_path / "real").iterdir()] == ["note.txt"]


def test_serve_and_ask_hand_their_words_on(tmp_path, capsys):
    settings = tmp_path / "serve.yaml"
    settings.write_text("model: nowhere\nallow_anonymous: true\n")
    words = ["serve", "--config", str(settings), "--host", "127.0.0.1", "--port", "0"]
    log = tmp_path / "log"
    assert forkserver.run("pipelines.__main__", words, log) == 4
    assert "no model in nowhere" in log.read_text()
    words[1:1] = [str(tmp_path)]  # a run
    assert forkserver.run("pipelines.__main__", words, log) == 4
    assert f"no model in {tmp_path / 'model'}" in log.read_text()
    (tmp_path / "image").write_bytes(b"no image")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    url = f"http://127.0.0.1:{free}/"  # nobody listens any more
    assert main(["ask", "classify", str(tmp_path / "image"), "--url", url]) == 1
    assert "unreachable" in capsys.readouterr().err


def test_a_run_reports_json_then_reuses(tmp_path, capfd):
    words = ["run", "demo", "--set", f"work={tmp_path}", *SMALL]
    assert main(words) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [line["state"] for line in lines[:-1]] == ["made"] * 2
    assert lines[-1]["run"] == str(tmp_path)
    assert "report" not in lines[-1]  # no stage of it writes one
    assert main([*words, "--force", "build_manifest"]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [line["state"] for line in lines[:-1]] == ["reused", "made"]
    assert main([*words, "--force", "train"]) == 2
    assert "--force names ['train'], which this run lacks" in capfd.readouterr().err

    nothing = ["--set", f"work={tmp_path / 'nothing'}", "--set", 'jobs=["split_sentences"]']
    assert main([*words, *nothing]) == 4
    assert capfd.readouterr().err.startswith("split_sentences: no ")

    shown = on_terminal(words)
    assert len([line for line in shown if " reused: " in line]) == 2
    assert not any(line.startswith("report ") for line in shown)  # no stage of it writes one


def on_terminal(words: list[str]) -> list[str]:
    """Run `medclip` with a terminal as its output, and return the lines without control codes."""
    reader, writer = pty.openpty()
    environment = {"TERM": "dumb", "COLUMNS": "120", "PROGRESS_FORMAT": ""}
    terminal = Path(os.ttyname(writer))
    assert forkserver.run("pipelines.__main__", words, terminal, environment=environment) == 0
    os.close(writer)
    text = b""
    with os.fdopen(reader, "rb", buffering=0) as stream, suppress(OSError):  # the other end is gone
        while piece := stream.read(4096):
            text += piece
    return text.decode().replace("\r", "").splitlines()


def test_training_starts_as_many_processes_as_the_config_asks_for(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    one = Config(work="w")
    eight = Config.model_validate({"work": "w", "train": {"processes": 8}})
    monkeypatch.setattr(sys, "platform", "linux")
    assert _launcher(one) == []  # forked, as other stages are
    words = _launcher(eight)
    assert words[1:3] == ["-m", "torch.distributed.run"]
    assert words[-3:] == ["8", "-m", "pipelines.train"]
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert _launcher(eight) == []
