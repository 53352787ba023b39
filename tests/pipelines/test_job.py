"""A job reuses what is valid, and its exit code says how it ended."""

import json
from pathlib import Path

import pytest

from medclip_dcl.artifact import ArtifactType, ArtifactWriter
from medclip_dcl.errors import ArtifactMissing, ConfigError, StudyError
from medclip_dcl.files import write_text
from pipelines.job import STOPPED, Job, Stopped, job_main

ARTIFACT = ArtifactType("thing", 1, "make_thing")


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(f"work: {tmp_path / 'work'}\n", encoding="utf-8")
    return path


def run(config_file: Path, work: object, *more: str) -> int:
    return job_main("make_thing", work)(["--config", str(config_file), *more])  # type: ignore[arg-type]


def test_valid_artifact_is_reused_and_said_so(
    config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_unknown_key_ends_with_the_configuration_code(config_file: Path) -> None:
    assert run(config_file, lambda job: None, "--set", "nonsense=1") == 2
