"""Sentences with the claims that they make; our own sentences, in the manner of reports."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.method.labeler import SHORT, notation
from medclip_dcl.text.labeler.labels import (
    FINDINGS,
    ReportLabels,
    read_claims,
    read_report,
    report_labels_of,
)
from medclip_dcl.text.labeler.lexicon import CUES, PHRASES_OF, split_phrases

CLEAR_LUNGS = "-ate -con -ede -les -opa -pna"


ASSERTIONS = [
    ("There is a small left pleural effusion.", "+eff:l"),
    ("Bilateral effusions are present.", "+eff:lr"),
    ("Moderate cardiomegaly.", "+car"),
    ("The heart is mildly enlarged.", "+car"),
    ("Enlarged cardiac silhouette.", "+car"),
    ("The heart size is borderline.", "+car"),
    ("Interval widening of the mediastinum.", "+ecm"),
    ("The mediastinum appears widened.", "+ecm"),
    ("Dense consolidation of the right lower lobe.", "+con:r"),
    ("Opacities at the left base, consistent with pneumonia.", "+opa:l +pna"),
    ("Hazy airspace disease in the lingula.", "+opa:l"),
    ("Mild interstitial edema.", "+ede"),
    ("A 4 mm nodule projects over the right apex.", "+les:r"),
    ("Spiculated mass in the left upper lobe.", "+les:l"),
    ("Old healed fractures of the right sixth rib.", "+fra:r"),
    ("Apical pneumothorax on the right.", "+ptx:r"),
    ("Left hydropneumothorax.", "+eff:l +ptx:l"),
    ("Biapical pleural thickening.", "+plo:lr"),
    ("A right PICC terminates in the SVC.", "+dev:r"),
    ("Plate-like atelectasis at both bases.", "+ate:lr"),
    ("Partial collapse of the right middle lobe.", "+ate:r"),
    ("Non-displaced rib fracture.", "+fra"),
    ("The patient is intubated.", "+dev"),
    ("Bibasilar opacities likely reflect atelectasis.", "+ate:lr +opa:lr"),
    ("Cardiac silhouette remains enlarged.", "+car"),
]

SAME_AS_BEFORE = [
    ("Unchanged left effusion.", "+eff:l"),
    ("Stable cardiomegaly.", "+car"),
    ("No change in the right effusion.", "+eff:r"),
    ("No significant interval change in bibasilar atelectasis.", "+ate:lr"),
    ("The effusion has not resolved.", "+eff"),
    ("Not only edema but effusion.", "+ede +eff"),
    ("Resolving right lower lobe pneumonia.", "+pna:r"),
    ("The nodule is not seen on the lateral view.", "+les"),
    ("The pneumothorax is not resolved.", "+ptx"),
    ("Compared to the prior, the left effusion has decreased.", "+eff:l"),
]

NEGATIONS = [
    ("No pneumothorax.", "-ptx"),
    ("No pleural effusion or pneumothorax.", "-eff -ptx"),
    ("No effusion, pneumothorax, or focal consolidation.", "-eff -ptx -con"),
    ("No evidence of edema, pneumonia or pneumothorax is seen.", "-ede -pna -ptx"),
    ("Negative for fracture.", "-fra"),
    ("The lungs are free of consolidation.", "-con"),
    ("Lungs are grossly clear of focal opacity, effusion, or pneumothorax.", "-opa -eff -ptx"),
    ("Without consolidation or effusion.", "-con -eff"),
    ("Neither effusion nor pneumothorax.", "-eff -ptx"),
    ("Pneumothorax has resolved.", "-ptx"),
    ("The previously seen effusions have cleared.", "-eff"),
    ("Interval resolution of edema.", "-ede"),
    ("Resolved right pneumothorax.", "-ptx"),
    ("Pleural effusion is absent.", "-eff"),
    ("A pneumothorax is not identified.", "-ptx"),
    ("Effusion is no longer seen.", "-eff"),
    ("Fracture cannot be seen.", "-fra"),
    ("The chest tube has been removed.", "-dev"),
    ("The heart is not enlarged.", "-car"),
    ("No cardiac enlargement.", "-car"),
    ("No findings of pulmonary edema.", "-ede"),
    ("No new consolidation.", "-con"),
    ("No large effusion and no pneumothorax.", "-eff -ptx"),
    ("Pneumothorax: none.", "-ptx"),
    ("Effusion is ruled out.", "-eff"),
    ("No overt heart failure.", "-ede"),
    ("Interval removal of the chest tube.", "-dev"),
    ("There is no consolidation, effusion or evidence of pneumothorax.", "-con -eff -ptx"),
]

SCOPES = [
    ("No pneumothorax, small left effusion.", "-ptx +eff:l"),
    ("No pneumothorax but a right effusion is present.", "-ptx +eff:r"),
    ("No effusion is seen, and there is mild edema.", "-eff +ede"),
    ("No consolidation with stable cardiomegaly.", "-con +car"),
    ("Effusion without pneumothorax.", "+eff -ptx"),
    ("Left effusion has resolved; right effusion persists.", "+eff:r"),
    ("Cardiomegaly is unchanged and the pneumothorax has resolved.", "+car -ptx"),
    ("The study is not without a small effusion.", "+eff"),
    ("Although no fracture is seen, there is a pneumothorax.", "-fra +ptx"),
    ("No pneumothorax. There are bilateral opacities.", "-ptx +opa:lr"),
    ("Nodule of 1.5 cm. No effusion.", "+les -eff"),
    ("Pneumonia cannot be excluded and the left effusion is stable.", "?pna +eff:l"),
    ("There is no pneumothorax, and the left effusion is unchanged.", "-ptx +eff:l"),
    ("Opacity in the left base, which may be edema.", "+opa:l ?ede"),
]

HEDGES = [
    ("Possible left pneumonia.", "?pna"),
    ("This may represent atelectasis.", "?ate"),
    ("Pneumonia cannot be excluded.", "?pna"),
    ("Cannot exclude a small effusion.", "?eff"),
    ("A small pneumothorax is not excluded.", "?ptx"),
    ("Atelectasis versus pneumonia at the right base.", "?ate ?pna"),
    ("Right basilar opacity, possibly pneumonia.", "+opa:r ?pna"),
    ("Questionable nodule in the left lung.", "?les"),
    ("Findings suspicious for malignancy.", "?les"),
    ("Small effusions are suspected.", "?eff"),
    ("Correlate clinically for pneumonia.", "?pna"),
    ("Rule out pneumothorax.", "?ptx"),
    ("Nondisplaced fractures may not be seen.", "?fra"),
    ("No effusion, possible pneumonia.", "-eff ?pna"),
    ("Pulmonary vascular congestion.", "?ede"),
    ("Blunting of the left costophrenic angle.", "?eff"),
    ("Left lower lobe volume loss.", "?ate"),
    ("Pneumonia cannot be entirely excluded.", "?pna"),
    ("Cannot entirely rule out a fracture.", "?fra"),
    ("Right opacity may be due to atelectasis or pneumonia.", "+opa:r ?ate ?pna"),
]

NORMAL = [
    ("The lungs are clear.", f"{CLEAR_LUNGS} normal"),
    ("Clear lungs.", f"{CLEAR_LUNGS} normal"),
    ("Normal chest.", "normal"),
    ("Unremarkable chest radiograph.", "normal"),
    ("No acute cardiopulmonary abnormality.", "normal"),
    ("No evidence of active disease.", "normal"),
    ("Negative for acute abnormality.", "normal"),
    ("Heart size is normal.", "-car"),
    ("Heart size normal.", "-car"),
    ("The heart is within normal limits in size.", "-car"),
    ("The cardiomediastinal silhouette is within normal limits.", "-car -ecm"),
    ("Heart and mediastinal contours are unremarkable.", "-car -ecm"),
    ("Normal heart size and clear lungs.", f"-car {CLEAR_LUNGS} normal"),
    ("Heart size is normal and the lungs are clear.", f"-car {CLEAR_LUNGS} normal"),
    ("The costophrenic angles are sharp.", "-eff"),
    ("No acute osseous abnormality.", "-fra"),
    ("Bony structures are intact.", "-fra"),
    ("BONES: Intact ribs.", ""),
    ("Heart size is at the upper limits of normal.", ""),
    ("Cardiomediastinal silhouette is unchanged.", ""),
    ("The right lung is clear.", ""),
    ("The lungs are otherwise clear.", ""),
    ("The lungs are not clear.", ""),
    ("Lungs are clear except for left basilar atelectasis.", "+ate:l -con -ede -les -opa -pna"),
    ("No acute abnormality. Calcified granuloma on the left.", ""),
    ("Heart normal. No consolidation. No effusion.", "-car -con -eff normal"),
    ("Lungs: clear. Heart: normal.", f"-car {CLEAR_LUNGS} normal"),
    ("No acute fracture or other osseous abnormality.", "-fra"),
    ("The aorta is tortuous. Otherwise normal chest.", ""),
    ("Bony structures reveal no acute abnormality.", "-fra"),
]

SIDES = [
    ("Left effusion and atelectasis.", "+eff:l +ate:l"),
    ("Effusion and atelectasis on the left.", "+eff:l +ate:l"),
    ("Effusion on the right and atelectasis on the left.", "+eff:r +ate:l"),
    ("Left effusion and right pneumothorax.", "+eff:l +ptx:r"),
    ("Opacities in the left base and right midlung.", "+opa:lr"),
    ("Effusions, right greater than left.", "+eff:lr"),
    ("Left effusion. Right effusion.", "+eff:lr"),
    ("Small right pleural effusion with adjacent atelectasis.", "+eff:r +ate:r"),
    ("Cardiomegaly with left effusion.", "+car +eff:l"),
    ("Left ventricular configuration with cardiomegaly.", "+car"),
]

WORDS = [
    ("ATELECTASIS AT THE LEFT BASE", "+ate:l"),
    ("Left sided pnuemothorax.", "+ptx:l"),
    ("No consolidaton or effussion.", "-con -eff"),
    ("Right\nlower lobe\nconsolidation", "+con:r"),
    ("Air-space disease / edema", "+opa +ede"),
    ("Pericardial effusion.", ""),
    ("Small left hemithorax.", ""),
    ("History of pneumonia.", ""),
    ("Calcified nodule in the right lung.", ""),
    ("No comparison is available.", ""),
    ("", ""),
]

TABLES = {
    "assertions": ASSERTIONS,
    "same as before": SAME_AS_BEFORE,
    "negations": NEGATIONS,
    "scopes": SCOPES,
    "hedges": HEDGES,
    "normal": NORMAL,
    "sides": SIDES,
    "words": WORDS,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [pytest.param(*row, id=f"{name}: {row[0]}") for name, rows in TABLES.items() for row in rows],
)
def test_sentence_makes_its_claims(text: str, expected: str) -> None:
    assert notation(read_claims(text)) == set(expected.split())


def test_the_tables_hold_every_finding_in_every_polarity_that_they_promise() -> None:
    said = {
        item.partition(":")[0]
        for rows in TABLES.values()
        for _, row in rows
        for item in row.split()
    }
    assert sum(map(len, TABLES.values())) >= 80
    assert {f"+{key}" for key in SHORT.values()} <= said
    assert SHORT.keys() == set(FINDINGS)


def test_report_asserts_over_hedges_and_hedges_over_denials() -> None:
    text = "No pneumonia. Possible pneumonia. No effusion. Left effusion. Possible effusion."
    assert notation(read_claims(text)) == {"?pna", "+eff:l"}


def test_an_abnormality_beyond_the_findings_keeps_a_report_from_being_normal() -> None:
    assert read_claims("No acute disease. Heart size normal.").normal
    assert not read_claims("No acute disease. Scoliosis.").normal
    assert not read_claims("No acute disease. Possible nodule.").normal


def test_united_readings_are_the_reading_of_the_whole() -> None:
    parts = ["Lungs are clear.", "Small left effusion.", "Degenerative changes.", "No edema."]
    assert report_labels_of(map(read_report, parts)) == read_claims(" ".join(parts))


def test_claims_survive_the_columns_of_the_artifact() -> None:
    claims = read_claims("Left effusion. Cardiomegaly. No edema. Possible pneumonia.")
    row = claims.to_row()
    assert row["asserted"] == ["Cardiomegaly", "Pleural Effusion|left"]
    assert ReportLabels.from_row(row) == claims


def test_only_a_text_with_claims_is_true() -> None:
    assert not read_claims("PA and lateral views of the chest.")
    assert read_claims("Normal chest.")
    assert read_claims("Possible pneumonia.")


PHRASES = [
    p for table in (PHRASES_OF, CUES) for text in table.values() for p in split_phrases(text)
]
TEXTS = st.one_of(
    st.text(max_size=1999),
    st.lists(st.sampled_from([*PHRASES, ",", ".", ";", "and", "\n\n", "x"]), max_size=80).map(
        " ".join
    ),
)


@settings(max_examples=150, deadline=None)
@given(TEXTS)
def test_any_text_gives_disjoint_claims_about_known_findings(text: str) -> None:
    claims = read_claims(text)
    asserted = set(claims.asserted)
    assert asserted | claims.negated | claims.uncertain <= set(FINDINGS)
    assert not asserted & claims.negated
    assert not asserted & claims.uncertain
    assert not claims.negated & claims.uncertain
    assert not (claims.normal and (asserted or claims.uncertain))
    assert all(sides <= {"left", "right"} for sides in claims.asserted.values())


@pytest.mark.parametrize(
    "unit",
    [
        "no ",
        "no pneumothorax, ",
        "no effusion" + " , " * 900,
        "left effusion has resolved ",
        "not seen ",
        "normal heart and ",
        "a",
        "cannot be ",
    ],
)
def test_time_grows_with_length_and_not_with_its_square(unit: str) -> None:
    def cpu_seconds(characters: int) -> float:
        text = (unit * characters)[:characters]
        times = []
        for _ in range(3):
            start = time.process_time()
            read_claims(text)
            times.append(time.process_time() - start)
        return min(times)

    # About 10 times as long where it is linear, 100 times where not. A clock of CPU time may tick
    # every 10 ms, and show 0 for what took less.
    assert cpu_seconds(50_000) < 40 * max(cpu_seconds(5_000), 0.01)
