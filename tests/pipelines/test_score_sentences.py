"""score_sentences: every distinct sentence scored once, whatever kills the job."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from medclip_dcl.artifacts import language_model, likelihoods, sentences
from medclip_dcl.artifacts.frame import Artifact, drafting, make_recipe, open_artifact
from medclip_dcl.artifacts.sentences import distinct_sentences
from medclip_dcl.artifacts.tables import read_table
from medclip_dcl.likelihood.language_model import save_language_model
from medclip_dcl.likelihood.pll import pseudo_log_likelihood
from pipelines import score_sentences, split_sentences
from tests.synthetic.bert import tiny_bert, tiny_tokenizer
from tests.synthetic.reports import write_reports

UNITS = ("--set", "likelihood.unit_sentences=3")


def write_model(work: Path, scale: float = 4.0) -> None:
    recipe = make_recipe(language_model.KIND, {"scale": scale}, {})
    kind = language_model.KIND
    with drafting(kind.at(work), kind, recipe) as draft:
        save_language_model(tiny_bert(scale=scale), tiny_tokenizer(), draft.directory)
        draft.seal({})


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"work: {tmp_path / 'work'}\nsentences: {{min_words: 3}}\n", encoding="utf-8")
    write_reports(tmp_path / "work")
    assert split_sentences.main(["--config", str(path)]) == 0
    write_model(tmp_path / "work")
    return path


def run(recipe: Path, *more: str) -> Artifact:
    assert score_sentences.main(["--config", str(recipe), *more]) == 0
    return open_artifact(recipe.parent / "work" / "likelihoods", likelihoods.KIND)


def test_scores_and_counts_are_those_of_the_sentences(recipe):
    table = read_table(run(recipe).path, likelihoods.LIKELIHOODS)
    corpus = open_artifact(recipe.parent / "work" / "sentences", sentences.KIND)
    distinct = distinct_sentences(corpus)
    texts = distinct["text"].to_pylist()
    expected = pseudo_log_likelihood(tiny_bert(), tiny_tokenizer(), texts)
    assert table["text_key"].to_pylist() == distinct["text_key"].to_pylist()
    assert table["pll_nats"].to_pylist() == pytest.approx(expected.tolist(), abs=2e-4)
    assert table["count"].to_pylist() == distinct["count"].to_pylist()
    assert max(table["count"].to_pylist()) > 3


def test_recipe_names_model_tokenizer_variant_dtype_and_splitter(recipe):
    artifact = run(recipe)
    assert set(artifact.recipe["settings"]) == {
        "variant",
        "dtype",
        "splitter",
        "normalisation",
        "tokenizer",
    }
    assert set(artifact.recipe["inputs"]) == {"sentences", "language_model"}


@pytest.mark.parametrize("change", ["variant", "dtype", "model"])
def test_what_changes_scores_makes_them_anew(recipe, capsys, change):
    digest = run(recipe).digest
    more = {
        "variant": ("--set", "likelihood.variant=within_word_l2r"),
        "dtype": ("--set", "likelihood.dtype=bfloat16"),
        "model": (),
    }[change]
    if change == "model":
        write_model(recipe.parent / "work", scale=3.0)
    assert run(recipe, *more).digest != digest
    assert '"state": "made"' in capsys.readouterr().out.splitlines()[-1]


def test_what_changes_speed_alone_reuses_scores(recipe, capsys):
    run(recipe)
    run(recipe, *UNITS, "--set", "likelihood.workers=1", "--set", "likelihood.token_budget=100")
    assert '"state": "reused"' in capsys.readouterr().out.splitlines()[-1]


def test_a_draft_of_another_model_is_not_mixed_in(recipe):
    kill_in_the_middle(recipe)
    write_model(recipe.parent / "work", scale=3.0)
    resumed = run(recipe, *UNITS).digest
    assert resumed == run_elsewhere(recipe, scale=3.0).digest


def test_killed_at_any_time_the_next_run_ends_with_the_same_bytes(recipe):
    acknowledged = kill_in_the_middle(recipe)
    before = {path: path.stat().st_mtime_ns for path in acknowledged}
    stamps: dict[Path, int] = {}
    draft_units = acknowledged[0].parent

    write = likelihoods.write_unit
    written = []

    def watched(folder: Path, name: str, scores: object) -> None:
        written.append(folder / f"{name}.parquet")
        stamps.update({path: path.stat().st_mtime_ns for path in before})
        write(folder, name, scores)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(likelihoods, "write_unit", watched)
        resumed = run(recipe, *UNITS)
    assert stamps == before
    assert not set(written) & set(before)
    assert written
    assert not draft_units.exists()
    assert list(resumed.files) == ["likelihoods.parquet"]
    assert resumed.digest == run_elsewhere(recipe).digest


def run_elsewhere(recipe: Path, scale: float = 4.0) -> Artifact:
    """An uninterrupted run on equal inputs in a folder of its own."""
    work = recipe.parent / "elsewhere"
    write_reports(work)
    other = recipe.parent / "elsewhere.yaml"
    other.write_text(f"work: {work}\nsentences: {{min_words: 3}}\n", encoding="utf-8")
    assert split_sentences.main(["--config", str(other)]) == 0
    write_model(work, scale)
    assert score_sentences.main(["--config", str(other), *UNITS]) == 0
    return open_artifact(work / "likelihoods", likelihoods.KIND)


def kill_in_the_middle(recipe: Path) -> list[Path]:
    """Start the job in a process of its own, kill -9 it after its first units."""
    code = (
        "import sys, time\n"
        "from medclip_dcl.artifacts import likelihoods\n"
        "from pipelines import score_sentences\n"
        "write = likelihoods.write_unit\n"
        "likelihoods.write_unit = lambda *unit: (write(*unit), time.sleep(.3))\n"
        "sys.exit(score_sentences.main(sys.argv[1:]))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "--config", str(recipe), *UNITS],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    units = recipe.parent / "work" / ".likelihoods.draft" / "units"
    deadline = time.monotonic() + 120
    while len(list(units.glob("unit-*.parquet"))) < 2 and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    acknowledged = sorted(units.glob("unit-*.parquet"))
    assert 2 <= len(acknowledged) < 7
    assert not (recipe.parent / "work" / "likelihoods").exists()
    return acknowledged


def test_summary_tells_counts_and_spread(recipe, capsys):
    summary = run(recipe).summary
    assert summary["sentences"] == 22
    assert summary["pll_p5_nats"] < summary["pll_median_nats"] < summary["pll_p95_nats"] < 0
    assert "effusion" not in json.dumps(summary) + capsys.readouterr().out
