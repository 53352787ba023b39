"""A job reuses what is valid, and its exit code says how it ended."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from medclip_dcl.core.artifact import ArtifactType
from medclip_dcl.core.artifact_writer import ArtifactWriter
from medclip_dcl.core.errors import ArtifactMissing, ConfigError, StudyError
from medclip_dcl.core.files import write_text
from medclip_dcl.core.progress import Progress
from pipelines import run as runs
from pipelines.job import STOPPED, Job, Stopped, job_main
from tests.house.tree import ROOT
from tests.support.headers import made_by_other_code

ARTIFACT = ArtifactType("thing", 1, "make_thing")


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(f"work: {tmp_path / 'work'}\n", encoding="utf-8")
    return path


def run(config_file: Path, work: object, *more: str) -> int:
    return job_main("make_thing", work)(["--config", str(config_file), *more])  # type: ignore[arg-type]


def test_valid_artifact_is_reused_and_said_so(config_file, capsys):
    written = []

    def write(writer: ArtifactWriter) -> dict[str, int]:
        written.append(1)
        write_text(writer.directory / "a", "x")
        return {"rows": 1}

    def work(job: Job) -> None:
        job.make(ARTIFACT, {"eta": job.config.eta}, {}, write)

    assert run(config_file, work) == run(config_file, work) == 0
    states = [json.loads(line)["state"] for line in capsys.readouterr().out.splitlines()]
    assert states == ["made", "reused"]
    assert run(config_file, work, "--set", "eta.a=0.1") == 0
    assert len(written) == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (StudyError("x"), 3),
        (ArtifactMissing("x"), 4),
        (Stopped(), STOPPED),
        (KeyboardInterrupt(), STOPPED),
    ],
)
def test_exit_code_tells_how_it_ended(config_file: Path, error: BaseException, code: int) -> None:
    def work(job: Job) -> None:
        raise error

    assert run(config_file, work) == code


FAULTY = """
import sys, threading
from multiprocessing import get_context
from medclip_dcl.core.errors import ending_with_fault
from pipelines.job import job_main

def fail():
    with ending_with_fault():
        raise KeyError("Jane Doe")

def work(job):
    other = get_context("fork").Process(target=fail)
    other.start()
    other.join()
    assert other.exitcode == 1
    thread = threading.Thread(target=lambda: {}["Jane Doe"])
    thread.start()
    thread.join()
    raise ValueError("Jane Doe")

sys.exit(job_main("make_thing", work)(["--config", sys.argv[1]]))
"""


def test_a_fault_names_its_type_and_place_but_not_its_message(config_file):
    """A library's message may quote a report, in the job's processes and threads too."""
    command = [sys.executable, "-c", FAULTY, str(config_file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("KeyError") >= 2
    assert "ValueError" in done.stderr
    assert " work\n" in done.stderr
    assert "Jane" not in done.stderr


def test_a_forced_job_makes_again_what_is_valid_and_reuse_names_changed_code(config_file, capsys):
    def work(job: Job) -> None:
        job.make(ARTIFACT, {}, {}, lambda writer: {"forced": job.force})

    assert run(config_file, work) == run(config_file, work) == 0
    assert capsys.readouterr().err == ""
    made_by_other_code(config_file.parent / "work" / "thing", "medclip_dcl/core/files.py")
    assert run(config_file, work) == 0
    shown = capsys.readouterr()
    assert "thing reused, made before medclip_dcl/core/files.py changed; --force" in shown.err
    assert run(config_file, work, "--force") == run(config_file, work) == 0
    shown = capsys.readouterr()
    assert [json.loads(line)["state"] for line in shown.out.splitlines()] == ["made", "reused"]
    assert shown.err == ""


def test_a_run_has_a_line_a_stage_and_the_rest_where_a_log_is_asked_for(
    config_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(job: Job) -> None:
        with Progress("things", 2) as progress:
            progress.advance(2)
        job.say(ignored_keys=0)
        job.say(warning="few", finding="mass", auc=None)
        job.say(artifact="thing", state="made", seconds=2.0, none=0, a=1, b=2, c=3, d=4)

    monkeypatch.setenv("PROGRESS_OF_RUN", "1")
    monkeypatch.delenv("PROGRESS_FORMAT")
    assert run(config_file, work) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "make_thing: warning few",
        "make_thing: thing made in 2 s: a 1, b 2, c 3",
    ]
    assert printed.err == ""
    assert run(config_file, work, "--log", "words") == 0
    printed = capsys.readouterr()
    assert "make_thing: ignored keys 0" in printed.out
    assert "none 0, a 1, b 2, c 3, d 4" in printed.out
    assert "things: 2 of 2" in printed.err


def test_a_signal_that_comes_as_a_stage_ends_stops_the_run(config_file, monkeypatch, capfd):
    """The stage, which works in a process of its own, has ended too far to hear of it."""
    work = config_file.parent / "work"

    def stage(_: object) -> int:
        work.mkdir()  # it fails if another stage comes
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.kill(os.getppid(), signal.SIGTERM)
        return 0

    monkeypatch.setattr(runs, "main_of", lambda _: stage)
    before = signal.getsignal(signal.SIGTERM)
    assert runs.run(config_file) == STOPPED
    assert work.is_dir()
    assert "run the same command again to go on" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before
