"""The lexicon and the cues as data: complete, and every phrase in one place."""

from collections import Counter

from medclip_dcl.text.labeler.lexicon import (
    ASSERTED_WHERE_LARGE,
    CUES,
    FINDINGS_OF,
    LEFT_OPEN_BY,
    NEGATED_WHERE_NORMAL,
    PHRASES_OF,
    REGIONS_OF,
    split_phrases,
)
from medclip_dcl.text.labeler.phrases import words


def test_every_concept_has_phrases_and_a_meaning() -> None:
    assert set(PHRASES_OF) == set(FINDINGS_OF) | set(LEFT_OPEN_BY)
    assert not set(FINDINGS_OF) & set(LEFT_OPEN_BY)


def test_every_region_says_what_it_denies() -> None:
    assert set(REGIONS_OF) == set(NEGATED_WHERE_NORMAL)
    assert set(ASSERTED_WHERE_LARGE) <= set(REGIONS_OF)
    named = {name for names in NEGATED_WHERE_NORMAL.values() for name in names}
    assert named | set(ASSERTED_WHERE_LARGE.values()) <= set(PHRASES_OF)


def test_no_phrase_stands_in_two_lists_or_is_empty() -> None:
    texts = [*PHRASES_OF.values(), *REGIONS_OF.values(), *CUES.values()]
    lists = [{tuple(words(phrase)) for phrase in split_phrases(text)} for text in texts]
    counts = Counter(phrase for phrases in lists for phrase in phrases)
    assert [phrase for phrase, count in counts.items() if count > 1] == []
    assert () not in counts
    assert len(counts) > 800
