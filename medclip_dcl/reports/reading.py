"""Sentence or report -> mentions of concepts.

Rules, in the order in which they are applied
    1  A text is cut into sentences at full stops that stand in no number, at semicolons,
       exclamation marks and empty lines.
    2  The longest phrase of the lexicon and of the cues counts at each place (`mentions`).
    3  "but", "except", "there is" ... cut a sentence into clauses; no rule looks across.
    4  Cues give every concept its polarity (`moods`).
    5  Side words give it its sides (`sides`).
    6  Parts of the film called normal or enlarged add theirs (`regions`).
"""

import hashlib
import json
import re
from dataclasses import dataclass, field

from medclip_dcl.reports import lexicon
from medclip_dcl.reports.cues import CUES, Cue
from medclip_dcl.reports.mentions import Mention, cut_clauses, find_marks
from medclip_dcl.reports.moods import read_moods
from medclip_dcl.reports.regions import read_regions
from medclip_dcl.reports.sides import read_sides

RULES = 1
"""Version of the rules; raised with every change of the code that applies them."""

_SENTENCE_END = re.compile(r"(?<!\d)\.|\.(?!\d)|[;!]|\n[ \t]*\n")


@dataclass
class Reading:
    """Everything that a text says; `normal`: it calls the film or the lungs normal."""

    mentions: list[Mention] = field(default_factory=list)
    normal: bool = False


def read_sentence(text: str) -> Reading:
    """Read one sentence.

    Args:
        text: a sentence; any text is allowed.

    Returns:
        Its mentions, and whether it calls the film or the lungs normal.

    Source: ours; cues with a scope are the idea of NegEx (Chapman et al. 2001).
    """
    marks = find_marks(text)
    reading = Reading(normal=bool(marks) and all(mark.cue is Cue.NORMAL for mark in marks))
    for clause in cut_clauses(marks):
        moods = read_moods(clause)
        for place, sides in read_sides(clause).items():
            reading.mentions.append(Mention(clause[place].concept, moods[place], sides))
        mentions, normal = read_regions(clause, moods)
        reading.mentions += mentions
        reading.normal |= normal
    return reading


def read_report(text: str) -> Reading:
    """Read every sentence of a text.

    Args:
        text: findings, impression, a whole report or one sentence; any text is allowed.

    Returns:
        The mentions of all sentences in order; normal where one sentence says so.
    """
    whole = Reading()
    for sentence in _SENTENCE_END.split(text):
        reading = read_sentence(sentence)
        whole.mentions += reading.mentions
        whole.normal |= reading.normal
    return whole


def reader_digest() -> str:
    """Name the rules and words that claims are read with.

    Returns:
        16 hexadecimal digits; others wherever a claim could have come out otherwise.
    """
    data = [
        RULES,
        {cue.name: text for cue, text in CUES.items()},
        lexicon.PHRASES_OF,
        lexicon.REGIONS_OF,
        lexicon.FINDINGS_OF,
        lexicon.LEFT_OPEN_BY,
        lexicon.NEGATED_WHERE_NORMAL,
        lexicon.ASSERTED_WHERE_LARGE,
        sorted(lexicon.MIDLINE),
    ]
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]
