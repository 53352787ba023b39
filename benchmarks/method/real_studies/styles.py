"""Reports of Open-i rewritten by rules into styles of other hospitals: how much is still read?

    TEST_DATA=FOLDER python -m benchmarks.method.real_studies.styles

prints, of each style, the reader's F1 by experts' labels over the eleven findings. A row of
rows.yaml with a `style` trains on reports that are rewritten so; questions stay as they are.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from sklearn.metrics import f1_score

from benchmarks.method.labeler import concepts_found
from benchmarks.method.real_studies.questions import QUESTIONS
from benchmarks.method.real_studies.studies import Patient, read_patients
from benchmarks.record import finish
from medclip_dcl.text.labeler.labels import read_report

_SHORT = {
    "there (?:is|are|has been)(?: an?)? |(?:is|are) (?:noted|seen|identified|present)": "",
    r"\b(?:the|an?|of|evidence|definite)\b": "",
    "pleural effusions?|effusions?": "eff",
    "pneumothora(?:x|ces)": "ptx",
    "pneumonia": "pna",
    "consolidations?": "cons",
    "atelectasis|atelectases": "atel",
    "cardiomegaly|heart (?:size )?is (?:mildly )?enlarged": "CM",
    "cardiac silhouette": "card sil",
    "opacit(?:y|ies)": "opac",
    "infiltrates?": "infil",
    "nodules?": "nod",
    "within normal limits": "WNL",
    "normal": "nl",
    "enlarged": "enl",
    "bilateral": "bilat",
    "right": "R",
    "left": "L",
    r"\s+": " ",
}
"""Words -> what is typed in their place, in this order."""
_DENIED = re.compile(
    r"^no (?:acute |focal |definite |large |evidence of |radiographic )*(.+)$", re.I
)
_CLAIMED = re.compile(r"^(?:there (?:is|are) )(?:an? )?(?!no\b)(.+)$", re.I)


def shorthand(sentences: Sequence[str]) -> str:
    """Type abbreviations in one line, with commas."""
    return ", ".join(_abbreviated(sentence.rstrip(". ").lower()) for sentence in sentences)


def _abbreviated(text: str) -> str:
    for words, short in _SHORT.items():
        text = re.sub(words, short, text)
    return text.strip()


def template(sentences: Sequence[str]) -> str:
    """Fill in a form: a finding, a question mark, YES or NO; other sentences stay."""
    lines = []
    for sentence in sentences:
        text = re.sub(r"^There (?:is|are) no\b", "No", sentence.rstrip(". "))
        if denied := _DENIED.match(text):
            parts = re.split(r", (?:or |and )?| or | and ", denied[1])
            lines += [f"{part.strip().capitalize()}? NO" for part in parts if part.strip()]
        elif claimed := _CLAIMED.match(text):
            lines.append(f"{claimed[1].capitalize()}? YES")
        else:
            lines.append(sentence)
    return "\n".join(lines)


def dictated(sentences: Sequence[str]) -> str:
    """Transcribe speech: small letters, and no stops or commas."""
    return re.sub(r"[.,;:]+", "", " ".join(sentences).lower())


STYLES: dict[str, Callable[[Sequence[str]], str]] = {
    "shorthand": shorthand,
    "template": template,
    "dictated": dictated,
}


def rewritten(patient: Patient, style: str) -> Patient:
    """Write a patient's report in a style."""
    findings, impression = (
        STYLES[style](re.split(r"(?<=[.?!])\s+", text.strip())) if text.strip() else ""
        for text in (patient.findings, patient.impression)
    )
    return replace(patient, findings=findings, impression=impression)


def main(_argv: Sequence[str] | None = None) -> int:
    """Print the reader's F1 of each style."""
    patients = read_patients(Path(os.environ["TEST_DATA"]) / "openi")
    names = [finding.name for finding in QUESTIONS]
    truth = np.array([[patient.gold[name] for name in names] for patient in patients])
    figures = {}
    for style in ("", *STYLES):
        texts = [rewritten(patient, style) if style else patient for patient in patients]
        read = [concepts_found(read_report(f"{p.findings}\n\n{p.impression}")) for p in texts]
        shown = np.array([[name in each for name in names] for each in read])
        for name, score in zip(names, f1_score(truth, shown, average=None), strict=True):
            figures[f"{style or 'as written'}: {name}"] = float(score)
        figures[f"{style or 'as written'}: mean"] = float(f1_score(truth, shown, average="macro"))
    return finish("real_styles", figures, {})


if __name__ == "__main__":
    sys.exit(main())
