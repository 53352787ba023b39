"""Golden splits, and every rule that drops a sentence."""

import json
import random
import re
import subprocess
import sys
import time

import pyarrow as pa
import pytest

from medclip_dcl.text import sentences
from medclip_dcl.text.sentences import (
    MASK,
    RULES,
    SentencesConfig,
    broken_rule,
    is_plain,
    normalise_text,
    pysbd,
    segment,
    split_reports,
    split_section,
)

SETTINGS = SentencesConfig()


def kept(text: str) -> list[str]:
    split = split_section(text)
    return [sentence for _, sentence in split.sentences]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        (
            "There is no focal consolidation,\n effusion, or pneumothorax.",
            ["There is no focal consolidation, effusion, or pneumothorax."],
        ),
        (
            "Discussed with Dr. ___ by phone. The tube is 1.5 cm above the carina.",
            ["Discussed with Dr. ___ by phone.", "The tube is 1.5 cm above the carina."],
        ),
        (
            "Findings were called at 3:15 p.m. on ___ by the resident. No change is seen.",
            [
                "Findings were called at 3:15 p.m. on ___ by the resident.",
                "No change is seen.",
            ],
        ),
        (
            "1. No acute process seen.\n2. Stable enlarged heart.",
            ["No acute process seen.", "Stable enlarged heart."],
        ),
        (
            "PA and lateral views.  The lungs\nare clear\r\n\tand well expanded.",
            ["PA and lateral views.", "The lungs are clear and well expanded."],
        ),
        (
            "Heart size is normal . . Lungs are clear bilaterally.",
            ["Heart size is normal .", "Lungs are clear bilaterally."],
        ),
        (
            "Lungs are clear now.. No effusion is seen.. .",
            ["Lungs are clear now.", "No effusion is seen."],
        ),
        (
            "Clear right lung base XXXX.In the left lobe there is a 1.9 x 1.8 cm area of density.",
            [
                "Clear right lung base XXXX.",
                "In the left lobe there is a 1.9 x 1.8 cm area of density.",
            ],
        ),
        (
            "Comparison is made to XXXX. Lungs are clear. No change since XXXX. No new lesion.",
            [
                "Comparison is made to XXXX.",
                "Lungs are clear.",
                "No change since XXXX.",
                "No new lesion.",
            ],
        ),
        (
            "No pleural effusion.Heart size is normal.There is a line in the S.V.C. on the right.",
            [
                "No pleural effusion.",
                "Heart size is normal.",
                "There is a line in the S.V.C. on the right.",
            ],
        ),
        (
            "1.Severe changes in both hips. 2. 3.No acute bone lesion.",
            ["Severe changes in both hips.", "No acute bone lesion."],
        ),
        (
            "a) Clear lungs today. b) Normal heart size.",
            ["Clear lungs today.", "Normal heart size."],
        ),
        ("", []),
        (" \n\t ", []),
    ],
)
def test_golden_splits(text, sentences):
    assert kept(text) == sentences


@pytest.mark.parametrize(
    ("sentence", "rule"),
    [
        (".", "punctuation"),
        ("- .", "punctuation"),
        ("1.", "enumerator"),
        ("(12).", "enumerator"),
        ("b)", "enumerator"),
        ("2. 3.", "enumerator"),
        ("___.", "masked"),
        ("XXXX XXXX 12/33.", "masked"),
        ("19/33.", "masked"),
        ("Normal.", "short"),
        ("No XXXX.", "short"),
        ("No pleural effusion.", ""),
        ("Stable ___ in the ___ lobe.", ""),
    ],
)
def test_every_rule_drops_what_it_says(sentence, rule):
    assert broken_rule(sentence) == rule
    assert rule in {"", *RULES}


def test_dropped_sentences_are_counted_by_rule_and_places_keep_their_numbers():
    split = split_section("The lungs are clear. Normal. No effusion is seen.")
    assert split.sentences == ((0, "The lungs are clear."), (2, "No effusion is seen."))
    assert split.dropped == {"punctuation": 0, "enumerator": 0, "masked": 0, "short": 1}


@pytest.mark.parametrize(
    "text",
    [
        "Lungs are clear.. No effusion.Heart is large now. 1. 2. ___. Fine.",
        "",
        "1.Clear. XXXX.The end",
    ],
)
def test_counts_of_a_section_add_up(text):
    split = split_section(text)
    assert split.plain == len(segment(text))
    left = split.plain + split.separated - sum(split.dropped.values())
    assert left == len(split.sentences)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1. No effusion is seen.", "No effusion is seen."),
        ("(2) No effusion is seen.", "No effusion is seen."),
        ("3) 5 mm nodule is seen.", "5 mm nodule is seen."),
        ("1.5 cm nodule is seen.", "1.5 cm nodule is seen."),
        ("12 mm nodule is seen.", "12 mm nodule is seen."),
    ],
)
def test_numbers_of_list_items_are_cut_off_and_measures_are_not(text, sentence):
    assert kept(text) == [sentence]


def test_lengths_are_capped_and_counted(monkeypatch):
    monkeypatch.setattr(sentences, "LONGEST_SENTENCE", 20)
    monkeypatch.setattr(sentences, "LONGEST_SECTION", 60)
    split = split_section("The lungs are clear and well expanded. " * 5)
    assert split.truncated_sections == 1
    assert split.truncated_sentences == 2
    assert [sentence for _, sentence in split.sentences] == ["The lungs are clear"] * 2


def test_nothing_is_lost_or_changed_by_segmenting():
    text = "No effusion. Dr. ___ was told; 1.5 cm nodule... unchanged? Yes! (See above.) End"
    assert "".join(segment(text)).replace(" ", "") == text.replace(" ", "")


WORDS = (
    "No effusion. The lungs are clear 1.5 cm. 2 7. rib ap. CT. Co. Dr. ___. XXXX. a. I. T12. U.S. "
    "' patient's -1. 3) -- and/or 50%. . of e.g. no. is. it's' 2.3.2010 10. 1. v. IMPRESSION: ; "
    "left, -' x-ray. 0. 9. b. ii. 1.5. p.m. A 'quoted' mass. i.v. I No. (4 nos. ? Fig."
)


def by_pysbd(text):
    pieces = pysbd.Segmenter(language="en", clean=False).segment(text)
    return [piece for piece in map(normalise_text, pieces) if piece]


def test_a_text_is_cut_at_its_stops_where_pysbd_does_so():
    rng = random.Random(1)
    texts = [" ".join(rng.choices(WORDS.split(), k=rng.randint(1, 9))) for _ in range(1500)]
    plain = [text for text in texts if is_plain(text)]
    assert len(plain) > 200
    assert [segment(text) for text in plain] == [by_pysbd(text) for text in plain]


@pytest.mark.real_data
def test_most_sections_of_open_i_need_no_pysbd(test_data):
    lines = (test_data / "openi" / "reports.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    sections = {
        normalise_text(row[name] or "") for row in rows for name in ("findings", "impression")
    }
    plain = sorted(filter(is_plain, sections))
    assert len(plain) / len(sections) > 0.8
    assert [segment(text) for text in plain[::5]] == [by_pysbd(text) for text in plain[::5]]


def test_every_distinct_section_is_split_once():
    report = {"study_id": "s1", "subject_id": "p1", "split": "train", "impression": ""}
    same = {**report, "findings": "The lungs are clear.", "last_paragraph": ""}
    tables: list[pa.Table] = []
    summary = split_reports([[same], [{**same, "study_id": "s2"}]], SETTINGS, tables.append)
    assert [table["study_id"].to_pylist() for table in tables] == [["s1"], ["s2"]]
    assert (summary["sections"], summary["distinct_sections"], summary["unique"]) == (2, 1, 1)


@pytest.mark.parametrize("token", ["___", "XXXX", "XXXXs", "_____"])
def test_de_identification_tokens_are_recognised(token):
    assert MASK.fullmatch(token)
    assert not MASK.search("XX MAXXXX a_b")


def test_import_is_quiet_where_warnings_are_errors():
    code = "import medclip_dcl.text.sentences, sys; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


@pytest.mark.parametrize(
    "text", ["a." * 10_000, "(" * 20_000, "'\"" * 10_000, "a" * 20_000, "A. b! c? " * 100]
)
def test_hostile_sections_end_and_lose_nothing(text):
    assert split_section(text).truncated_sections == 0


@pytest.mark.parametrize("text", ["1. " * 6_600, "i. " * 6_600, "a. x b. x c. x " * 1_300])
def test_pathological_text_meets_its_deadline(monkeypatch, text):
    monkeypatch.setattr(sentences, "DEADLINE_S", 0.2)
    begun = time.process_time()
    split = split_section(text + "The lungs are clear. No effusion.")
    assert time.process_time() - begun < 1.5  # four seconds and more without the deadline
    assert split.unsegmented == 1
    assert [said for _, said in split.sentences][-1] == "No effusion."
    assert split.plain + split.separated - sum(split.dropped.values()) == len(split.sentences)


@pytest.mark.real_data
def test_open_i_gives_the_known_number_of_sentences(test_data):
    lines = (test_data / "openi" / "reports.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    sections = [row[name] for row in rows for name in ("findings", "impression") if row[name]]
    splits = {text: split_section(text) for text in set(sections)}
    dropped = {rule: sum(splits[text].dropped[rule] for text in sections) for rule in RULES}
    plain = sum(splits[text].plain for text in sections)
    separated = sum(splits[text].separated for text in sections)
    kept = sum(len(splits[text].sentences) for text in sections)
    assert (len(rows), len(sections), plain, separated, kept) == (2400, 4477, 14074, 8, 13604)
    assert dropped == {"punctuation": 317, "enumerator": 5, "masked": 3, "short": 153}
    assert plain + separated - sum(dropped.values()) == kept
    assert sum(splits[text].unsegmented for text in sections) == 0
    said = [sentence for text in sections for _, sentence in splits[text].sentences]
    assert not any(sentence in {".", "1."} for sentence in said)
    assert not any(re.search(r"X{3,}\.[A-Z]", sentence) for sentence in said)
