"""Real studies: folds, losses of rivals and comparisons, held against loops and numbers by hand."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from scipy import stats

from benchmarks.method.real_studies.__main__ import ROUNDS, planned
from benchmarks.method.real_studies.balance import BalancedSampler, rarity
from benchmarks.method.real_studies.questions import QUESTIONS, ask_findings, fitting, means
from benchmarks.method.real_studies.rows import BASELINE, CONSTANT, DECISIVE, EARLY, MADE, ROWS
from benchmarks.method.real_studies.runs import DECAY, JUDGE, Bed, Run, ask_together, averaged
from benchmarks.method.real_studies.studies import (
    CHEXPERT,
    VARIANTS,
    Fold,
    Patient,
    divide,
    read_whole,
    weights_folder,
)
from benchmarks.method.real_studies.summary import (
    between_starts,
    compare,
    confirm,
    decide,
    figures_of,
    holm,
    is_stopped,
    paired,
)
from benchmarks.method.real_studies.variants import (
    _in_one_form,
    of_studies,
    own_sentences_left_out,
)
from medclip_dcl.losses.relations import encode_claims
from medclip_dcl.text.labeler.labels import read_claims
from medclip_dcl.training.corpus import Corpus
from medclip_dcl.training.sampler import RaggedIndex


def patient(number: int, **gold: bool) -> Patient:
    return Patient(str(number), "", "", (f"images/{number}.jpg",), gold)


def test_every_part_has_its_share_of_every_label() -> None:
    rng = np.random.default_rng(0)
    patients = [
        patient(n, rare=bool(rng.random() < 0.03), usual=bool(rng.random() < 0.4))
        for n in range(1000)
    ]
    parts = divide(patients, [0.2] * 5, seed=1)
    assert Counter(one.uid for part in parts for one in part) == Counter(p.uid for p in patients)
    for label in ("rare", "usual"):
        counts = [sum(one.gold[label] for one in part) for part in parts]
        assert max(counts) - min(counts) <= 1
    assert {len(part) for part in parts} == {200}
    assert [p.uid for p in divide(patients, [0.2] * 5, seed=1)[0]] == [p.uid for p in parts[0]]


def test_a_model_of_all_studies_tests_nobody() -> None:
    everyone = [patient(number, Edema=number % 7 == 0) for number in range(100)]
    fold = read_whole(Path("root"), Path("out"), everyone)
    assert fold.tested == ()
    assert {each.uid for each in (*fold.training, *fold.validation)} == {*map(str, range(100))}
    assert len(fold.validation) == 10


def test_laterals_are_in_the_table_only_where_a_start_learns_from_them(tmp_path: Path) -> None:
    own = dict.fromkeys((label for labels in CHEXPERT.values() for label in labels), False)
    one = Patient("1", "Clear.", "", ("images/1_a.jpg",), own, ("images/1_b.jpg",))
    fold = Fold(0, tmp_path, tmp_path, (), (one,), ())
    fold.write_table()
    (row,) = pq.read_table(tmp_path / "studies.parquet").to_pylist()
    assert "view" not in row
    fold.write_table(laterals=True)
    rows = pq.read_table(tmp_path / "studies.parquet").to_pylist()
    assert [(each["path"], each["view"]) for each in rows] == [
        ("images/1_a.jpg", "frontal"), ("images/1_b.jpg", "lateral"),
    ]  # fmt: skip
    weights = {weights_folder(fold, start) for start in ("warm", *VARIANTS)}
    assert len(weights) == 1 + len(VARIANTS)


def test_an_image_meets_the_sentences_of_others_alone() -> None:
    torch.manual_seed(0)
    s = torch.randn(6, 3)
    owner = torch.tensor([0, 0, 0, 1, 2, 2])
    expected = []
    for image in range(3):
        others = sum(math.exp(s[n, image]) for n in range(6) if owner[n] != image)
        own = [math.exp(s[n, image]) for n in range(6) if owner[n] == image]
        expected.append(np.mean([-math.log(p / (p + others)) for p in own]))
    found = own_sentences_left_out(s, owner)
    assert found.item() == pytest.approx(np.mean(expected), rel=1e-6)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("Small left pleural effusion.", "There is left pleural effusion."),
        ("No pneumothorax.", "There is no pneumothorax."),
        ("The aorta is tortuous.", "The aorta is tortuous."),
    ],
)
def test_one_form_says_what_the_sentence_claims(text: str, form: str) -> None:
    assert _in_one_form(read_claims(text), text) == form


def test_sentences_are_true_by_the_experts_labels() -> None:
    names = ("Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Effusion", "Mass", "Nodule")
    none = dict.fromkeys(
        (*names, "Pleural_Thickening", "Pneumonia", "Pneumothorax", "normal"), False
    )
    gold = [none | {"Effusion": True}, none | {"normal": True}, none | {"Nodule": True}]
    texts = {
        "There is a pleural effusion.": [True, False, False],
        "No pleural effusion.": [False, True, True],
        "There is a nodule and no effusion.": [False, False, True],
        "The chest is normal.": [False, True, False],
    }
    unanswered = ["There may be an effusion.", "The lung is opaque: there is an opacity.", "Nice."]
    codes = encode_claims([read_claims(text) for text in (*texts, *unanswered)]).numpy()
    fits, answered = fitting(codes, gold)
    assert answered.tolist() == [True] * len(texts) + [False] * len(unanswered)
    assert fits[: len(texts)].tolist() == list(texts.values())


def test_a_finding_is_asked_by_its_pair_and_by_one_sentence() -> None:
    prompts = 2 * len(QUESTIONS)
    scores = np.zeros((prompts, 4))
    scores[0], scores[1] = [0.1, 0.2, 0.3, 0.4], [0.3, 0.2, 0.1, 0.0]
    truth = np.zeros((len(QUESTIONS), 4), dtype=bool)
    truth[0] = [False, False, True, True]
    found = ask_findings(scores, np.zeros(prompts), truth)[QUESTIONS[0].name]
    assert found["auc"] == found["auc_alone"] == found["auprc"] == 1
    assert found["accuracy"] == 1
    assert found["correlation"] == pytest.approx(-1)


def test_inverted_findings_are_counted_and_unknown_ones_left_out() -> None:
    figures = {
        finding.name: dict.fromkeys(
            ("auc", "auc_alone", "auprc", "accuracy", "accuracy_offset"), 0.7
        )
        for finding in QUESTIONS
    }
    figures["Edema"] |= {"auc": 0.2}
    figures["Pneumonia"] |= {"auc": None}
    found = means(figures)  # type: ignore[arg-type]
    assert found["inverted"] == 1
    assert found["mean_auc"] == pytest.approx((0.7 * 9 + 0.2) / 10)


def test_shared_patients_widen_the_interval() -> None:
    gaps = [0.1, 0.2, 0.0, 0.1, 0.1]
    found = compare(gaps, [0.0] * 5)
    error = math.sqrt((1 / 5 + 1 / 4) * np.var(gaps, ddof=1))
    reach = stats.t.ppf(0.975, 4) * error
    assert (found.low, found.high) == pytest.approx((0.1 - reach, 0.1 + reach))
    assert found.p == pytest.approx(2 * stats.t.sf(0.1 / error, 4))
    assert found.seen == pytest.approx(reach + stats.t.ppf(0.8, 4) * error)
    assert (found.runs, found.better) == (5, 4)
    assert math.isnan(compare([1.0, 2.0], [0.0, 0.0]).p)


def test_holm_multiplies_the_least_p_most() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx(
        {"a": 0.03, "c": 0.06, "b": 0.06}
    )


def line(auc: float, judge: float = 0.5, early: float = 0.0) -> dict[str, object]:
    figures = {"mean_auc": auc, "validation": {JUDGE: judge}}
    return {"figures": figures, "early": figures | {"mean_auc": early}}


def test_a_tuned_row_is_the_value_that_its_fold_chose() -> None:
    values = list(ROWS["remove_mean"].points)
    lines = {
        Run("random", "remove_mean", value, fold, 0): line(0.1 * fold + number, judge)
        for fold in (0, 1)
        for number, (value, judge) in enumerate(zip(values, (0.4, 0.6), strict=True))
    }
    found = figures_of(lines)["remove_mean"]
    assert {key: figures["mean_auc"] for key, figures in found.items()} == {(0, 0): 1, (1, 0): 1.1}
    del lines[Run("random", "remove_mean", values[0], 1, 0)]
    assert set(figures_of(lines)["remove_mean"]) == {(0, 0)}


def test_early_row_and_best_constant_come_from_the_runs_of_others() -> None:
    lines = {Run("random", BASELINE, "", 0, 0): line(0.6, early=0.65)}
    for number, value in enumerate((0.02, 0.05, 0.1, 0.2)):
        lines[Run("random", f"constant_{value}", "", 0, 0)] = line(
            0.6 + number / 100, 0.9 - number / 10
        )
    found = figures_of(lines)
    assert found[EARLY][0, 0]["mean_auc"] == 0.65
    assert found[CONSTANT][0, 0]["mean_auc"] == 0.6  # chosen by validation, not by the test
    gap = paired(found, EARLY, CONSTANT)
    assert gap is not None
    assert gap.value == pytest.approx(0.05)


def test_a_warm_start_is_held_against_the_random_start_of_its_fold() -> None:
    lines = {Run("warm", "paper", "", 3, 0): line(0.9)}  # its random start is not there
    for fold, (warm, random) in enumerate(((0.7, 0.6), (0.8, 0.5), (0.6, 0.65))):
        lines[Run("warm", "cross", "", fold, 0)] = line(warm)
        lines[Run("random", "cross", "", fold, 0)] = line(random)
        lines[Run("random", "cross", "", fold, 1)] = line(0.0)  # nor is a second warm seed
    (name, found), *others = between_starts(lines, "warm").items()
    assert (name, others, found.runs, found.better) == ("cross", [], 3, 2)
    assert found.value == pytest.approx((0.1 + 0.3 - 0.05) / 3)
    for fold, other in enumerate((0.8, 0.7, 0.7)):  # ahead of the warm start in two of three folds
        lines[Run("laterals", "cross", "", fold, 0)] = line(other)
    found = between_starts(lines, "laterals")["cross"]
    assert (found.runs, found.better) == (3, 2)
    assert found.value == pytest.approx((0.1 - 0.1 + 0.1) / 3)


def test_a_row_far_behind_stops_after_three_folds_and_a_decisive_one_never() -> None:
    lines = {Run("random", BASELINE, "", fold, 0): line(0.7) for fold in range(3)}
    for name, auc in (("soft_targets", 0.66), ("one_form", 0.68), ("paper", 0.5)):
        lines |= {Run("random", name, "", fold, 0): line(auc) for fold in range(3)}
    found = figures_of(lines)
    assert [is_stopped(found, name) for name in ("soft_targets", "one_form", "paper")] == [
        True, False, False,
    ]  # fmt: skip
    rows = {run.row for run in planned(2, lines)}
    assert "soft_targets" not in rows
    assert "one_form" in rows
    assert "paper" in {run.row for run in planned(0, lines) if run.fold > 2}


def test_rounds_do_every_row_and_what_decides_fold_by_fold() -> None:
    first = [*planned(0, {})]
    assert [run.fold for run in first] == sorted(run.fold for run in first)
    done = {run.row for number in (0, 1, 2, 5, 6) for run in planned(number, {})}
    assert done == {*ROWS}
    assert not {run.row for run in first} & {run.row for run in planned(1, {})}
    assert {ROWS[run.row].part for run in planned(5, {})} == {"curve"}
    assert {ROWS[run.row].part for run in planned(6, {})} == {"idea"}
    assert {(run.start, run.row, run.seed) for n in (7, 8) for run in planned(n, {})} == {
        (start, row, 0) for start in VARIANTS for row in ("relations_both", "frozen")
    }


def test_fewer_studies_keep_their_own_images_and_sentences() -> None:
    corpus = Corpus(
        study_ids=("a", "b", "c"),
        subject_ids=frozenset(),
        images=RaggedIndex(np.array([0, 1, 1, 2]), 3),
        image_ids=("a1", "b1", "b2", "c1"),
        study_of_image=np.array([0, 1, 1, 2]),
        image_rows=np.array([7, 5, 4, 9]),
        sentences=RaggedIndex(np.array([0, 2, 1, 0]), 3),  # by number: of a, of c, of b, of a
        text_of=np.array([0, 1, 2, 3]),
        texts=("clear", "edema", "nodule", "normal"),
        text_keys=("k0", "k1", "k2", "k3"),
        eta=np.zeros(4, dtype=np.float32),
    )
    fewer = of_studies(corpus, np.array([1, 2]))
    assert fewer.study_ids == ("b", "c")
    assert fewer.image_ids == ("b1", "b2", "c1")
    assert fewer.image_rows.tolist() == [5, 4, 9]
    assert fewer.images.sizes.tolist() == [2, 1]
    texts = [
        fewer.texts[fewer.text_of[fewer.sentences.pick(np.array([study]), np.zeros(1))[0]]]
        for study in (0, 1)
    ]
    assert texts == ["nodule", "edema"]


def test_second_seeds_and_warm_starts_are_of_what_decides_and_the_warm_ceilings() -> None:
    lines = {}
    for value, judge in ((0.02, 0.5), (0.05, 0.6), (0.1, 0.9), (0.2, 0.7)):
        lines |= {
            Run("random", f"constant_{value}", "", fold, 0): line(0.6, judge) for fold in range(5)
        }
    for number in (3, 4):
        runs = [*planned(number, lines)]
        start, _, seed, _ = ROUNDS[number]
        assert {run.row for run in runs} == {
            *(row.name for row in DECISIVE),
            *("constant_0.1", "relations_both", "relations_both_shuffled"),
            *(("ceiling", "frozen") if start == "warm" else ()),
        }
        assert {(run.start, run.seed) for run in runs} == {(start, seed)}
    assert (
        len({run.draw for n in (0, 1, 2, 3) for run in planned(n, lines) if run.row == "paper"})
        == 10
    )


def test_the_row_that_led_is_confirmed_by_the_second_seed_alone() -> None:
    lines = {}
    for fold in range(5):
        noise = 0.01 * (fold % 2)
        for seed, lead in ((0, 0.3), (1, 0.1)):  # what the first seed gave is not asked
            lines[Run("random", BASELINE, "", fold, seed)] = line(0.5, early=0.6)
            lines[Run("random", "relations_both", "", fold, seed)] = line(0.6 + lead + noise)
        lines[Run("random", "relations_both_shuffled", "", fold, 1)] = line(0.58)
        for value in (0.02, 0.05, 0.1, 0.2):
            lines[Run("random", f"constant_{value}", "", fold, 0)] = line(0.9, judge=value)
        lines[Run("random", "constant_0.2", "", fold, 1)] = line(0.65)
    found = confirm(figures_of(lines))
    assert found["confirmed_runs"] == 5
    assert found["confirmed_minus_rival"] == pytest.approx(0.054)  # the constant is the better
    assert 0 < found["confirmed_minus_rival_low"] < 0.054
    assert found["confirmed_minus_control"] == pytest.approx(0.124)
    only_first = {run: value for run, value in lines.items() if run.seed == 0}
    assert confirm(figures_of(only_first)) == {}


def test_the_best_honest_row_is_held_against_the_better_rival_and_its_own_control() -> None:
    aucs = {"paper": 0.6, "paper_both": 0.62, "cross": 0.7, "cross_place": 0.74,
            "cross_place_words": 0.72, "cross_shuffled": 0.5, "cross_place_shuffled": 0.52,
            "cross_places_shuffled": 0.7}  # fmt: skip
    lines = {}
    for fold in range(3):
        noise = (0.0, 0.01, -0.01)[fold]
        lines[Run("random", BASELINE, "", fold, 0)] = line(0.6, early=0.65)
        for name, auc in aucs.items():
            lines[Run("random", name, "", fold, 0)] = line(auc + noise)
        for value in (0.02, 0.05, 0.1, 0.2):
            lines[Run("random", f"constant_{value}", "", fold, 0)] = line(0.6)
    for one in lines.values():
        one["figures"]["inverted"] = 1  # type: ignore[index]
    found = decide(lines)
    assert found["best_minus_rival"] == pytest.approx(0.09)
    assert found["best_minus_control"] == pytest.approx(0.22)
    assert found["shuffled_minus_infonce"] == pytest.approx(-0.1)
    assert (found["decisive_runs"], found["other_folds"], found["warm_runs"]) == (3, 0, 0)
    assert found["inverted_by_recommended"] == 3
    gaps = np.array([0.09, 0.10, 0.08])
    p = 2 * stats.t.sf(0.09 / math.sqrt((1 / 3 + 1 / 4) * gaps.var(ddof=1)), 2)
    assert found["best_minus_rival_holm_p"] == pytest.approx(7 * p)  # three of ten are surer


def test_runs_have_names_of_their_own() -> None:
    run = Run("random", "paper", "", 2, 1)
    assert run.name == "random/paper/2/1"
    assert run._replace(value="0.1").name == "random/paper/0.1/2/1"
    assert replace(ROWS["paper"]).points == {"": dict(ROWS["paper"].settings)}


def test_a_rare_finding_is_drawn_more_often_and_no_study_twice() -> None:
    weights = rarity([{"Nodule"}, {"Nodule", "Edema"}, {"Nodule"}, {"Nodule"}, set()])
    assert weights / weights[0] == pytest.approx([1, 2, 1, 1, 2])
    of_study = RaggedIndex(np.arange(5), 5)
    sampler = BalancedSampler(of_study, of_study, 3, 0, False)
    sampler.weights = weights
    drawn = [sampler.draw(step).studies.tolist() for step in range(200)]
    assert all(len({*batch}) == 3 for batch in drawn)
    counts = Counter(study for batch in drawn for study in batch)
    assert min(counts[1], counts[4]) > max(counts[0], counts[2], counts[3])
    assert sampler.draw(7).studies.tolist() == drawn[7]


def test_an_average_of_weights_follows_the_optimizer() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    expected = None
    with averaged(model) as mean:
        for gradient in (1.0, 2.0, -4.0):
            model.weight.grad = torch.full((1, 1), gradient)
            optimizer.step()
            now = model.weight.item()
            expected = now if expected is None else DECAY * expected + (1 - DECAY) * now
    assert mean.module.weight.item() == pytest.approx(expected)


def test_four_models_are_asked_by_their_mean_score(tmp_path: Path) -> None:
    names = [finding.name for finding in QUESTIONS]
    patients = tuple(patient(n, **dict.fromkeys(names, n > 1)) for n in range(4))
    bed = Bed((Fold(0, tmp_path, tmp_path, patients, (), ()),), tmp_path)
    margins = np.array([[0, 4, 1, 5], [4, 0, 5, 1], [0, 0, 2, 0], [0, 0, 0, 2]]) / 8
    for seed, margin in enumerate(margins):  # each has an AUC of .75 at most, their mean one of 1
        member = bed.folder(Run("random", "relations_both", "", 0, seed))
        member.mkdir(parents=True)
        (member / "run.json").write_text("{}")
        scores = np.tile(np.stack([margin, np.zeros(4)]), (len(names), 1)).astype(np.float32)
        np.savez(member / "scores.npz", uid=np.array(["0", "1", "2", "3"]), scores=scores)
    run = Run("random", "relations_both_four", "", 0, 0)
    figures, kept = ask_together(bed, run, members=4)
    assert figures["mean_auc"] == 1
    assert kept["scores"][0] == pytest.approx([0.125, 0.125, 0.25, 0.25])
    np.savez(member / "scores.npz", uid=np.array(["0", "1", "3", "2"]), scores=scores)
    with pytest.raises(SystemExit, match="other images"):
        ask_together(bed, run, members=4)


def test_a_model_is_made_of_rows_that_are_one_model() -> None:
    left_out = {"ceiling", "frozen", "relations_both_four", "relations_both_224"}
    assert {*ROWS} - {*MADE} == left_out
