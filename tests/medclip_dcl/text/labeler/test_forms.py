"""Forms, check boxes, shorthand and layouts: what each claims, with sections and sentences cut."""

import pytest

from benchmarks.method.labeler import notation
from medclip_dcl.text.labeler.forms import write_out
from medclip_dcl.text.labeler.labels import read_claims, read_report, report_labels_of
from medclip_dcl.text.sections import read_loose_sections
from medclip_dcl.text.sentences import split_section

CLEAR = "-ate -con -ede -les -opa -pna normal"

ANSWERS = [
    ("Pneumonia [0=no 1=yes]: 1", "+pna"),
    ("Effusion  Y / <N>", "-eff"),
    ("Edema (none / mild / severe): mild", "+ede"),
    ("Effusion? unchanged, small", "+eff"),
    ("Effusion: \u2713 (R)", "+eff:r"),
    ("Effusion  \u25cb Yes  \u25cf No", "-eff"),
    ("No #.", "-fra"),
    ("Pneumothorax: N", "-ptx"),
    ("Pneumothorax: Y, small right", "+ptx:r"),
    ("PTX (-)", "-ptx"),
    ("Effusion - none", "-eff"),
    ("Effusion: nil", "-eff"),
    ("Pneumothorax: 0", "-ptx"),
    ("\xd8 PTX, \xd8 effusion", "-ptx -eff"),
    ("\xf8 pna", "-pna"),
    ("w/o effusion", "-eff"),
    ("No PTX/effusion/consolidation", "-ptx -eff -con"),
    ("Pneumothorax: absent; Pleural effusion: present (left)", "-ptx +eff:l"),
    ("Pleural effusion ........ No", "-eff"),
    ("Pleural effusion: None seen.", "-eff"),
    ("Pneumothorax: Not identified", "-ptx"),
    ("Pneumothorax = no", "-ptx"),
    ("Pneumothorax -> no", "-ptx"),
    ("Pneumothorax? Yes", "+ptx"),
    ("[ ] Pneumothorax [x] Pleural effusion [ ] Consolidation", "-ptx +eff -con"),
    ("Pneumothorax [ ]  Effusion [x]", "-ptx +eff"),
    ("\u2610 Pneumothorax \u2611 Effusion", "-ptx +eff"),
    ("Pneumothorax: \u2610 Yes \u2612 No", "-ptx"),
    ("Pneumothorax: [X] No [ ] Yes", "-ptx"),
    ("Pneumothorax  ( ) Yes  (x) No", "-ptx"),
    ("Pneumothorax: No Effusion: Yes Edema: No", "-ptx +eff -ede"),
    ("Pneumothorax: n/a", ""),
    ("Pneumothorax: possible", "?ptx"),
    ("Edema: cannot exclude", "?ede"),
    ("Heart enlarged: Yes", "+car"),
    ("Enlarged heart: No", "-car"),
    ("Cardiomegaly: mild", "+car"),
    ("Nodules: none. Masses: none.", "-les"),
    ("Pleural effusion: no change", "+eff"),
    ("Effusion: unchanged", "+eff"),
    ("Effusion: stable small left", "+eff:l"),
    ("Pneumothorax: No pneumothorax.", "-ptx"),
    ("Pneumothorax: There is no pneumothorax.", "-ptx"),
    ("Tubes and lines: None", "-dev"),
    ("Support devices: none", "-dev"),
    ("Lines/tubes: ETT 4 cm above carina", "+dev"),
    ("No acute cp process", "normal"),
    ("NAD", "normal"),
    ("CXR: NAD.", "normal"),
    ("neg for ptx", "-ptx"),
    ("r/o pna", "?pna"),
    ("?PNA RLL", "?pna"),
    ("CM, mild pulm edema, b/l effs L>R", "+car +ede +eff:lr"),
    ("ETT ok. NGT in stomach. R IJ CVL tip SVC. No PTX.", "+dev:r -ptx"),
    ("RLL opac c/f PNA", "+opa:r ?pna"),
    ("LLL atx, sm L eff", "+ate:l +eff:l"),
    ("nl heart, clr lungs", "-car -ate -con -ede -les -opa -pna normal"),
    ("hrt nl. lungs clr. no eff/ptx", "-ate -con -ede -les -opa -pna -eff -ptx normal -car"),
    ("No infiltrate, effusion, CHF, or PTX", "-opa -eff -ede -ptx"),
    ("Bilat. pleural effusions, R > L.", "+eff:lr"),
    ("Rt. base atelectasis. Lt. lung clear.", "+ate:r"),
    ("Small L. pleural effusion. R. lung is clear.", "+eff:l"),
    (
        "the lungs are clear the heart is enlarged no effusion",
        "-ate -con -ede -les -opa -pna +car -eff",
    ),
    ("LUNGS CLEAR. NO EFFUSION.HEART ENLARGED.", "-ate -con -ede -les -opa -pna -eff +car"),
    ("Effusion, pneumothorax: none", "-eff -ptx"),
    ("Is there a pneumothorax? No.", "-ptx"),
    ("Evidence of pneumonia: No", "-pna"),
    ("Signs of heart failure: absent", "-ede"),
    ("Acute fracture: None identified", "-fra"),
    ("Heart: Enlarged (CTR 60%)", "+car"),
    ("no ptx.  small eff on lt.", "-ptx +eff:l"),
    ("CHF", "?ede"),
    ("no CHF or PNA", "-ede -pna"),
    ("Pneumonia - ruled out", "-pna"),
    ("Pneumonia: excluded", "-pna"),
    ("Pneumothorax\u2014none. Effusion\u2014small, left.", "-ptx +eff:l"),
    ("No effusion, pneumothorax\u2014or consolidation.", "-eff -ptx -con"),
    ("Lungs: no consolidation, mass - heart: enlarged", "-con -les +car"),
    ("Small pneumothorax (right)", "+ptx:r"),
    ("Effusion (small, left)", "+eff:l"),
    ("Mild cardiomegaly w/ pulm vasc congestion, no effusions", "+car ?ede -eff"),
    ("s/p CABG. Sternal wires intact. No edema.", "+dev -ede"),
    ("No pneumothorax\u2028Left effusion", "-ptx +eff:l"),
    ("Left\xa0pleural\xa0effusion", "+eff:l"),
    ("No pneumo\xadthorax", "-ptx"),
    ("Cardio\u200bmegaly", "+car"),
    ("Effusion:none", "-eff"),
    ("back pain: none, Effusion: none,", "-eff"),
    ("Seen on [date]. Effusion is present.", "+eff"),
    ("Left effusion, right lung is clear.", "+eff:l"),
    ("Left lung is clear, right lung shows consolidation.", "+con:r"),
    ("Small effusion. No change: none.", "+eff"),
    ("no pneumothorax the heart is enlarged", "-ptx +car"),
    ("No consolidating airspace disease is seen.", "-con -opa"),
    ("The lungs, pleura and visualized upper abdomen are normal.", CLEAR + " -eff"),
    ("[&lt;The heart is enlarged.&gt;]", "+car"),
    ("The pleura is <normal>. Edema <mild>.", "-eff +ede"),
    ("no ptx / no edema / aicd", "-ptx -ede +dev"),
    ("no pna / no eff / mild cardiomegaly", "-pna -eff +car"),
    ("no ptx / effusion", "-ptx -eff"),
    ("Effusion   no   yes", "+eff"),
    ("Pneumothorax | no | no", "-ptx"),
    ("Edema;no;no", "-ede"),
    ("#R clavicle", "+fra:r"),
    ("# left 5th rib", "+fra:l"),
    ("# ribs 3-5", "+fra"),
    ("#1 No effusion", "-eff"),
    ("Old rib fx's on the left.", "+fra:l"),
    ("Left haemothorax.", "+eff:l"),
    ("Interstitial oedema.", "+ede"),
    ("Left mass ?Ca bronchus", "+les:l"),
    ("Nil effusion, nil consolidation.", "-eff -con"),
    ("Fluid is seen in the left pleural cavity.", "+eff:l"),
    ("There is no fluid around the lungs.", "-eff"),
    ("Fluid in the stomach.", ""),
    ("Pneumonia is favored.", "?pna"),
    ("Question pneumothorax. No pneumothorax is seen.", "-ptx"),
    ("Intact ribs.", ""),
    ("Intact bony thorax.", ""),
    ("Ribs are intact.", "-fra"),
]
REPORTS = [
    ("Absent:\n- Pneumothorax\n- Edema", "-ptx -ede"),
    ("Positives:\n- Effusion\nPertinent negatives:\n- Pneumothorax", "+eff -ptx"),
    ("FINDINGS: Stable.\nNegative findings:\n* Fracture\n* Effusion", "-fra -eff"),
    ("Possible:\n- Pneumonia", "?pna"),
    ("Effusion?\nNone.", "-eff"),
    ("Q1. Pneumothorax?\nA1. No.", "-ptx"),
    ("EFFUSION\nNone.", "-eff"),
    ("DEVICES\nNil.", "-dev"),
    ("Consolidation  [ ] Yes  [X] No\nPleural effusion  [X] Yes  [ ] No", "-con +eff"),
    ("1. Pelvis: fracture of the ramus.\n2. Chest: no effusion.", "-eff"),
    ("Knee: effusion.\nChest: no edema.", "-ede"),
    ("Study 1: XR Hip. Femoral fracture.\nStudy 2: XR Chest. No effusion.", "-eff"),
    ("<report><history>effusion?</history><findings>No edema.</findings></report>", "-ede"),
    (
        "Technique\nAP\n\nCritical Findings\nEdema.\n\nOther Findings\nOld rib fracture.",
        "+ede +fra",
    ),
    ("Pleural effusions:\nNone.", "-eff"),
    ("PNEUMOTHORAX:\nAbsent", "-ptx"),
    (
        "lungs - clear\nheart - big\npleura - small left effusion",
        "+car +eff:l -ate -con -ede -les -opa -pna",
    ),
    (
        "Heart size: normal\nMediastinum: normal\nHila: normal\n"
        "Lungs: right upper lobe nodule\nBones: old rib fx",
        "-car -ecm +les:r +fra",
    ),
    ("1 No effusion\n2 Cardiomegaly", "-eff +car"),
    ("Impression: (1) no effusion (2) cardiomegaly", "-eff +car"),
    ("i. No effusion\nii. Cardiomegaly", "-eff +car"),
    ("IMPRESSION:\n1. No effusion\n\n2. Left pneumonia\n   with small effusion", "+eff:l +pna:l"),
    ("Pneumothorax: Negative\nEffusion: Positive", "-ptx +eff"),
    ("Consolidation : NO\nPleural effusion : NO\nCardiomegaly : YES", "-con -eff +car"),
    ("Consolidation;No\nCardiomegaly;Yes", "-con +car"),
    ("Hilar/mediastinal contours: Normal\nPleural spaces: Clear", "-ecm -eff"),
    ("Heart Enlarged\nLungs Clear", "+car -ate -con -ede -les -opa -pna"),
    ("FINDINGS (CHEST): Cardiomegaly.\nFINDINGS (ABDOMEN): Normal gas.", "+car"),
    ("Exam: CXR\nResult: Cardiomegaly. No effusion.", "+car -eff"),
    ("Reason for Exam: SOB, r/o effusion\nFinal Report\nThere is cardiomegaly.", "+car"),
    (
        "PROCEDURE: CXR PA/LAT\nCOMPARISON: 1/2/2020 showing effusion\n\nThe heart is enlarged.\n\n"
        "IMPRESSION: Cardiomegaly.",
        "+car",
    ),
    ("Clinical details: ?pneumothorax.\nReport: No pneumothorax. Cardiomegaly.", "-ptx +car"),
    (
        "Clinical Indication - effusion.\nFindings - cardiomegaly.\nConclusion - no effusion.",
        "+car -eff",
    ),
    ("HISTORY: effusion. TECHNIQUE: AP. FINDINGS: Cardiomegaly. IMPRESSION: As above.", "+car"),
    ("CLINICAL: pneumonia? FINDINGS: cardiomegaly", "+car"),
    ("Findings\n\nCardiomegaly.\n\nImpression\n\nNo effusion.", "+car -eff"),
    ("FINDINGS/IMPRESSION: Cardiomegaly", "+car"),
    (
        "Addendum: There is also a left rib fracture.\n\nFINDINGS: Clear lungs.",
        "+fra:l -ate -con -ede -les -opa -pna",
    ),
    ("FINDINGS: No fracture.\nADDENDUM 1/2/20: On review there is a left rib fracture.", "+fra:l"),
    ("&bull; No effusion<br>&bull; Cardiomegaly", "-eff +car"),
    (
        "<table><tr><th>Organ</th><th>Finding</th></tr><tr><td>Heart</td>"
        "<td>Enlarged</td></tr><tr><td>Pleura</td><td>No effusion</td></tr></table>",
        "+car -eff",
    ),
    ("<dl><dt>Pneumothorax</dt><dd>No</dd><dt>Effusion</dt><dd>Yes</dd></dl>", "-ptx +eff"),
    (
        "| Finding | Result |\n|---|---|\n| Pneumothorax | No |\n| Effusion | Small left |",
        "-ptx +eff:l",
    ),
    ("<b>Heart</b>: enlarged<br/><b>Pleura</b>: no effusion", "+car -eff"),
    ("<Findings>Cardiomegaly</Findings><Impression>No effusion</Impression>", "+car -eff"),
    ("Consult\n-2-day history of cough\n-Today no effusion\n-Edema: None", "-eff -ede"),
    (
        "Findings: None. Impression: 1. NO CHANGE IN POSITION OF CHEST\n"
        "TUBES. NO LARGE PNEUMOTHORAX. 2. SMALL RIGHT PLEURAL\nEFFUSION REMAINS.",
        "+dev +eff:r -ptx",
    ),
]


@pytest.mark.parametrize(("text", "claims"), ANSWERS)
def test_every_usual_form_of_an_answer_is_read(text: str, claims: str) -> None:
    assert notation(read_claims(text)) == set(claims.split())


@pytest.mark.parametrize(("text", "claims"), REPORTS)
def test_reports_of_every_layout_are_read(text: str, claims: str) -> None:
    sections = [section for section in read_loose_sections(text) if section]
    sentences = [text for section in sections for _, text in split_section(section).sentences]
    assert notation(report_labels_of(map(read_report, sentences))) == set(claims.split())


@pytest.mark.parametrize(
    "text",
    ["No effusion is seen.", "A 2.3 cm nodule above the carina.", "Left-sided tube, 3:15 pm"],
)
def test_prose_is_left_as_it_is(text: str) -> None:
    assert write_out(text) == text
