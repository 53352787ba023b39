"""What reports call the findings, and the words that decide what is said about them.

The words are data, `lexicon.yaml`, with a comment at each list. A cue stands for what it does, and
the reading rules know only that. A concept is the finest thing distinguished; several concepts may
be one CheXpert finding, and some are none: they only say that an image is not normal.
"""

import re
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

LABELS = (
    "Atelectasis",
    "Cardiomegaly",
    "Consolidation",
    "Edema",
    "Enlarged Cardiomediastinum",
    "Fracture",
    "Lung Lesion",
    "Lung Opacity",
    "No Finding",
    "Pleural Effusion",
    "Pleural Other",
    "Pneumonia",
    "Pneumothorax",
    "Support Devices",
)
"""The 14 CheXpert labels, as MIMIC-CXR-JPG's table names them."""

MIDLINE = frozenset({"Cardiomegaly", "Enlarged Cardiomediastinum"})
"""Findings that have no side, whatever side word stands near."""


class _ByIdentity:
    """Members are compared by identity; Enum's own hashes their names."""

    __hash__ = object.__hash__


Cue = Enum(
    "Cue",
    "DENY NOT GONE PARTLY DENY_BEFORE EXCLUDED EXCLUDE ASK ASK_BEFORE IF_ANY HEDGE_EITHER HEDGE "
    "HEDGE_BEFORE HEDGE_BOTH PAST PAST_BEFORE CHANGE BREAK COLON DASH WHICH OR AND COMMA WITH VERB "
    "SEEN VIEW DEGREE NORMAL LARGE NEAR_NORMAL OTHERWISE ABNORMALITY NEUTRAL LEFT RIGHT BOTH",
    type=_ByIdentity,
)
"""Effect of a word or phrase on the findings near it; `lexicon.yaml` explains each."""

TREE: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("lexicon.yaml").read_text(encoding="utf-8")
)
CUES: dict[Cue, str] = {Cue[name]: text for name, text in TREE["cues"].items()}
"""Cue -> phrases, separated by semicolons."""
PHRASES_OF: dict[str, str] = TREE["concepts"]
"""Concept -> phrases."""
REGIONS_OF: dict[str, str] = TREE["regions"]
"""Part of the image -> phrases."""
FINDINGS_OF: dict[str, list[str]] = TREE["findings"]
"""Concept -> CheXpert findings, perhaps none."""
LEFT_OPEN_BY: dict[str, list[str]] = TREE["left_open_by"]
"""Concept -> findings that it makes possible."""
NEGATED_WHERE_NORMAL: dict[str, list[str]] = TREE["negated_where_normal"]
"""Part of the image -> concepts."""
ASSERTED_WHERE_LARGE: dict[str, str] = TREE["asserted_where_large"]
"""Part of the image -> concept."""


def split_phrases(text: str) -> list[str]:
    """Split an entry of the lexicon into its phrases."""
    return [phrase.strip() for phrase in text.split(";")]


def pattern_of(text: str) -> str:
    """A pattern that any phrase of an entry matches, the longest first."""
    phrases = sorted(split_phrases(text), key=len, reverse=True)
    return f"(?:{'|'.join(re.escape(phrase).replace(chr(92) + ' ', ' ') for phrase in phrases)})"


WORDS = {
    f"{table}.{kind}": pattern_of(text)
    for table in ("answers", "ends", "elsewhere")
    for kind, text in TREE[table].items()
}
"""Table and entry, as `answers.no` -> pattern of its phrases, as `Patterns` takes them."""
