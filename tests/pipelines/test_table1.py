"""The table as users start it: rows, seeds, several processes, a kill, another recipe."""

import json
import shutil
import time
from pathlib import Path

import pytest

from medclip_dcl import model_package
from medclip_dcl.artifact import open_artifact
from medclip_dcl.errors import ConfigError
from medclip_dcl.evaluation import results
from pipelines.config import load_config
from pipelines.runs import LOG, NOTE
from pipelines.table1 import FIGURES, FOLDER, main, table_text
from pipelines.table1_rows import COMPARED, PAPER_ROWS, chosen_rows, paper_values, row_seeds
from testing import forkserver
from testing.corpus import write_config
from testing.evaluated import write_untrained

ROOT = Path(__file__).parents[2]

DEADLINE_S = 120


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_untrained(tmp_path_factory.mktemp("corpus") / "work")


SEEDS = {"lse_nl": [0, 1, 2], "others": [0, 1]}
EVALUATE = {"prompts": "${WORK}/prompts.yaml", "bootstrap": 30, "retrieval_pool": 4}
ONE = ("--processes", "1")


def config_of(work, rows, seeds, **sections):
    config_file = write_config(
        work / "config.yaml",
        work,
        **{
            "eta": {"source": "frequency"},
            "evaluate": EVALUATE,
            "source": {"root": "${WORK}"},
            "table1": {"rows": rows, "seeds": seeds},
            **sections,
        },
    )
    with config_file.open("a") as stream:
        stream.write("jobs: [train]\n")  # everything before it is there
    return config_file


def figures(work):
    return json.loads((work / FOLDER / FIGURES).read_text(), parse_constant=pytest.fail)


@pytest.fixture(scope="module")
def made(corpus, tmp_path_factory):
    """Two rows, of two seeds and of three, made in this process."""
    work = shutil.copytree(corpus, tmp_path_factory.mktemp("made") / "work")
    rows = ["dcl_05", "lse_nl"]
    assert main(["--config", str(config_of(work, rows, SEEDS)), *ONE]) == 0
    return work


def test_the_table_has_the_paper_s_layout_and_values(made, capsys):
    rows = figures(made)["rows"]
    assert list(rows) == ["lse_nl", "dcl_05"]  # in the paper's order
    assert rows["dcl_05"]["paper"] == {
        "AUC": 0.80,
        "ACC": 0.72,
        "CNR": 1.46,
        "mIoU": 0.19,
        "Recall": 0.30,
        "MedR": 104,
    }
    cnr = rows["lse_nl"]["figures"]["grounding.cnr"]
    assert cnr["low"] < cnr["value"] < cnr["high"]
    assert rows["lse_nl"]["seeds"] == [0, 1, 2]
    assert rows["dcl_05"]["seeds"] == [0, 1]
    two = rows["dcl_05"]["figures"]["grounding.cnr"]
    assert (two["low"], two["n"]) == (None, 2)  # of two seeds there is no interval
    against = rows["dcl_05"]["against_baseline"]
    assert set(against) == set(COMPARED)
    assert {"p", "detectable", "low", "high"} <= against["grounding.cnr_signed"].keys()
    assert rows["lse_nl"]["cost"]["model_mb"] > 0
    assert main(["--config", str(made / "config.yaml"), *ONE]) == 0
    printed = capsys.readouterr().out
    assert "DCL eta=.05" in printed
    assert "(1.46)" in printed
    assert "DCL eta=.05                        against no correction:" in printed
    cnr = against["grounding.cnr_signed"]
    assert cnr["verdict"].startswith("no difference shown")
    assert f"signed CNR (80% power at {cnr['detectable']:.2g})" in printed


def test_the_mean_over_seeds_is_that_of_their_results(made):
    runs = [
        results.read_figures(
            open_artifact(made / FOLDER / f"lse_nl/seed-{seed}/results", results.ARTIFACT)
        )
        for seed in (0, 1, 2)
    ]
    values = [run["questions"]["grounding"]["figures"]["miou"]["value"] for run in runs]
    found = figures(made)["rows"]["lse_nl"]["figures"]["grounding.miou"]["value"]
    assert found == pytest.approx(sum(values) / 3)


def test_a_finished_run_is_not_done_again_and_a_changed_one_is(made, capsys):
    notes = sorted((made / FOLDER).glob(f"*/*/{NOTE}"))
    before = [note.stat().st_mtime_ns for note in notes]
    own = made / FOLDER / "dcl_05" / "seed-1" / NOTE
    cost = json.loads(own.read_text())["cpu_s"]
    own.unlink()  # as if killed before its note
    assert main(["--config", str(made / "config.yaml"), *ONE]) == 0
    assert '"runs": 5, "done": 4' in capsys.readouterr().out
    after = [note.stat().st_mtime_ns for note in notes]
    assert [old == new for old, new in zip(before, after, strict=True)] == [
        True,
        False,
        True,
        True,
        True,
    ]
    assert json.loads(own.read_text())["cpu_s"] >= cost > 0  # that of the training stays in it
    changed = config_of(made, ["lse_nl"], [0], train={"steps": 6})
    assert main(["--config", str(changed), *ONE]) == 0
    assert '"runs": 1, "done": 0' in capsys.readouterr().out


def test_a_killed_table_goes_on_where_it_was(corpus, tmp_path):
    work = shutil.copytree(corpus, tmp_path / "work")
    loop = {"steps": 24, "save_every_steps": 4}
    arguments = ["--config", str(config_of(work, ["dcl_05"], [0], train=loop)), "--processes"]
    table = forkserver.start("pipelines.table1", [*arguments, "2"], tmp_path / "log")
    own = work / FOLDER / "dcl_05" / "seed-0"
    limit = time.monotonic() + DEADLINE_S
    while not any((own / "checkpoints").glob("step-*")):
        assert table.is_alive()
        assert time.monotonic() < limit
        time.sleep(0.02)
    table.kill()  # its worker hears of it, saves and ends
    table.join()
    assert not (own / NOTE).exists()
    assert main([*arguments, "1"]) == 0
    assert "go on" in (own / LOG).read_text()
    whole = shutil.copytree(corpus, tmp_path / "whole")
    assert main(["--config", str(config_of(whole, ["dcl_05"], [0], train=loop)), *ONE]) == 0
    folders = [folder / FOLDER / "dcl_05" / "seed-0" for folder in (work, whole)]
    losses = [
        open_artifact(model_package.ARTIFACT.at(f), model_package.ARTIFACT).summary["loss"]
        for f in folders
    ]
    assert losses[0] == losses[1]  # as if nothing had happened


def test_a_run_that_fails_is_named_and_its_exit_code_kept(corpus, tmp_path, capsys):
    work = shutil.copytree(corpus, tmp_path / "work")
    config_file = config_of(work, ["dcl_lm"], [0])  # the corpus has no likelihoods
    assert main(["--config", str(config_file), *ONE]) == 4
    output = capsys.readouterr().err
    assert "dcl_lm/seed-0 ended with exit code 4" in output
    assert "likelihoods" in (work / FOLDER / "dcl_lm" / "seed-0" / LOG).read_text()


def test_the_paper_s_rows_are_nine_and_variants_come_when_asked_for(tmp_path):
    plain = load_config(write_config(tmp_path / "config.yaml", tmp_path))
    names = [row.name for row in chosen_rows(plain)]
    assert names == [row.name for row in PAPER_ROWS]
    assert len(names) == 9
    own = ["shuffled", "multipositive", "lse_nl"]
    more = load_config(tmp_path / "config.yaml", [f"table1.rows={json.dumps(own)}"])
    assert [row.name for row in chosen_rows(more)] == ["lse_nl", "multipositive", "shuffled"]
    with pytest.raises(ConfigError, match=r"names \['beauty'\]; choose among"):
        chosen_rows(load_config(tmp_path / "config.yaml", ['table1.rows=["beauty"]']))


def test_a_given_model_is_evaluated_in_biovil_s_place(made, capsys):
    given = EVALUATE | {"adapter": {"model": "testing.clip:build"}}
    config_file = config_of(made, ["biovil", "dcl_05"], [0, 1], evaluate=given)
    assert main(["--config", str(config_file), *ONE]) == 0
    rows = figures(made)["rows"]
    assert list(rows) == ["biovil", "dcl_05"]
    assert rows["biovil"]["seeds"] == [0]  # nothing is drawn: once
    assert rows["biovil"]["paper"] == {}  # of Microsoft's weights alone
    assert "one run" in rows["biovil"]["figures"]["grounding.cnr"]["reason"]
    assert not (made / FOLDER / "biovil" / "seed-0" / "model").exists()
    assert "testing.clip:build" in capsys.readouterr().out


def test_the_paper_s_values_stand_next_to_rows_that_are_trained_as_its_are(tmp_path):
    config_file = write_config(tmp_path / "config.yaml", tmp_path)
    given = "evaluate.adapter.model=biovil"
    medr = {}
    for key, settings in {
        "paper": [],
        "both": ["objective.directions=both"],
        "global": ["model.similarity.kind=global"],
        "given": ["objective.directions=both", given],
    }.items():
        config = load_config(config_file, settings)
        values = {row.name: paper_values(row, config) for row in chosen_rows(config)}
        medr[key] = {name: found["MedR"] for name, found in values.items() if found}
    assert medr["paper"]["dcl_lm"] == 104
    assert "biovil" not in medr["paper"]  # ours is not Microsoft's
    assert len(medr["paper"]) == 8
    assert medr["both"] == medr["global"] == {}
    assert medr["given"] == {"biovil": 148}


@pytest.fixture(scope="module")
def tuned(corpus, tmp_path_factory):
    """The best of four constants, two seeds, in slices: those of the second seed come later."""
    work = shutil.copytree(corpus, tmp_path_factory.mktemp("tuned") / "work")
    config_file = config_of(
        work,
        [],
        [],
        table1={"rows": ["lse_nl", "dcl_best"], "seeds": [4, 2]},
        train={"steps": 6, "validate_every_steps": 3, "validate_images": 8},
    )
    arguments = ["--config", str(config_file), *ONE]
    assert main([*arguments, "--rows", "lse_nl"]) == 0
    assert not (work / FOLDER / FIGURES).exists()
    assert main([*arguments, "--rows", "dcl_best", "--seeds", "4"]) == 0
    assert not (work / FOLDER / FIGURES).exists()
    assert main([*arguments, "--seeds", "2"]) == 0
    return work


def test_a_row_takes_the_value_that_is_best_on_validation(tuned):
    row = figures(tuned)["rows"]["dcl_best"]
    scores = row["tuned"]["scores"]
    assert list(scores) == [f"constant={eta}" for eta in ("0.02", "0.05", "0.1", "0.2")]
    best = max(scores, key=scores.get)
    assert (row["tuned"]["value"], row["tuned"]["seed"]) == (best, 4)  # the first seed's
    assert row["seeds"] == [4, 2]
    made = {path.parent.name for path in (tuned / FOLDER / "dcl_best").glob("*/seed-2")}
    assert made == {best}  # no other value got the second seed
    for name, score in scores.items():
        log = tuned / FOLDER / "dcl_best" / name / "seed-4" / "checkpoints" / "metrics.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        said = [line["validation_report_auc"] for line in lines if "validation_report_auc" in line]
        assert len(said) == 2
        assert score == pytest.approx(max(said), abs=1e-4)


def test_one_seed_of_a_row_is_not_judged(made):
    tree = figures(made)
    row = next(row for name, row in tree["rows"].items() if name != "lse_nl")
    row["against_baseline"] = {
        name: {"verdict": "not known", "corrected_p": None} for name in COMPARED
    }
    assert "against no correction: not judged: one seed" in table_text(tree)


def test_the_config_s_table_has_ten_seeds_where_it_matters():
    config = load_config(ROOT / "configs/table1.yaml")
    seeds = {row.name: len(row_seeds(row, config.table1)) for row in chosen_rows(config)}
    ten = {"lse_nl", "dcl_lm", "cross_place", "shuffled", "cross_shuffled", "cross_places"}
    assert {name for name, count in seeds.items() if count == 10} == ten
    assert set(seeds.values()) == {5, 10}
