"""Section of a report -> sentences: PySBD behind one function, and the rules of what is kept.

Rules, in the order in which they are tried
    punctuation   nothing but marks: a lone full stop
    enumerator    a bare list number: "1." or "2)"
    masked        no letter outside the de-identification tokens ___ and XXXX
    short         fewer readable words than the settings ask for

What is kept loses the number of a list item in front, where the settings say so.
"""

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata

from medclip_dcl.artifacts.sentences import normalise_text
from medclip_dcl.config.text import SentencesConfig

with warnings.catch_warnings():  # its regular expressions are plain strings with bad escapes
    warnings.simplefilter("ignore", SyntaxWarning)
    warnings.simplefilter("ignore", DeprecationWarning)
    import pysbd

RULES = ("punctuation", "enumerator", "masked", "short")
"""Names of the rules that drop a sentence, in the order in which they are tried."""

SPLITTER = f"pysbd {metadata.version('pysbd')} en, rules 1"
"""Names how reports are split; part of the recipe of everything that is made from sentences."""

MASK = re.compile(r"_{2,}|\bX{3,}s?\b")
"""De-identification tokens: MIMIC's ___ and Open-i's XXXX."""

_ENUMERATOR = re.compile(r"\(?(\d{1,3}|[A-Za-z])[.):]+")
_NUMBER = re.compile(r"^(\(?\d{1,2}[.):] +)+(?=\S)")
_SEGMENTER = pysbd.Segmenter(language="en", clean=False)


@dataclass(frozen=True)
class Split:
    """What became of one section: the kept sentences and why others were not."""

    sentences: tuple[tuple[int, str], ...]
    """Place among all sentences of the section, from 0, and normalised text."""
    dropped: Mapping[str, int]
    """Rule -> sentences that it dropped."""
    truncated_sentences: int
    """Kept sentences that were cut to the longest length allowed."""
    truncated_sections: int
    """1 where the section itself was cut before it was split."""


def split_section(text: str, settings: SentencesConfig) -> Split:
    """Split one section of a report into the sentences that are scored and trained on.

    Whitespace is collapsed first: PySBD would otherwise end a sentence at every line
    wrap that follows a comma.

    Args:
        text: the section, with or without line breaks.
        settings: shortest and longest sentence, longest section.

    Returns:
        The kept sentences in order, and counts of what was dropped or cut.

    Source: Sadvilkar and Neumann 2020 (PySBD); the rules are ours.
    """
    whole = normalise_text(text)
    kept, dropped, cut = [], dict.fromkeys(RULES, 0), 0
    for place, sentence in enumerate(segment(whole[: settings.max_section_characters])):
        rule = broken_rule(sentence, settings.min_words)
        if rule:
            dropped[rule] += 1
            continue
        stated = without_number(sentence) if settings.strip_numbers else sentence
        cut += len(stated) > settings.max_characters
        kept.append((place, normalise_text(stated[: settings.max_characters])))
    too_long = len(whole) > settings.max_section_characters
    return Split(tuple(kept), dropped, cut, int(too_long))


def without_number(sentence: str) -> str:
    """Cut off the number of a list item.

    Args:
        sentence: one sentence.

    Returns:
        The sentence from its first word on: "2. No effusion." gives "No effusion.".
    """
    return _NUMBER.sub("", sentence)


def split_sections(texts: Iterable[str], settings: SentencesConfig) -> dict[str, Split]:
    """Split every distinct section once; reports repeat each other, and PySBD is slow.

    Args:
        texts: sections, repeats allowed.
        settings: as in `split_section`.

    Returns:
        Section -> what became of it.
    """
    return {text: split_section(text, settings) for text in dict.fromkeys(texts)}


def segment(text: str) -> list[str]:
    """Split a text at the ends of its sentences and drop nothing.

    Args:
        text: any text; whitespace should be collapsed.

    Returns:
        Sentences with collapsed whitespace, empty ones left out.
    """
    stripped = (normalise_text(piece) for piece in _SEGMENTER.segment(text))
    return [piece for piece in stripped if piece]


def broken_rule(sentence: str, min_words: int) -> str:
    """Name the rule by which a sentence is dropped.

    Args:
        sentence: a normalised sentence.
        min_words: fewest words with a letter outside de-identification tokens.

    Returns:
        A name from `RULES`, or "" where the sentence is kept.
    """
    if not any(character.isalnum() or character == "_" for character in sentence):
        return "punctuation"
    if _ENUMERATOR.fullmatch(sentence):
        return "enumerator"
    readable = MASK.sub(" ", sentence)
    words = sum(any(c.isalpha() for c in word) for word in readable.split())
    if words == 0:
        return "masked"
    return "short" if words < min_words else ""
