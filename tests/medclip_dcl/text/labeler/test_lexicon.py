"""The lexicon and the cues as data: complete, and every phrase in one place."""

from collections import Counter

from medclip_dcl.text.labeler import lexicon
from medclip_dcl.text.labeler.phrases import words


def test_every_concept_has_phrases_and_a_meaning() -> None:
    assert set(lexicon.PHRASES_OF) == set(lexicon.FINDINGS_OF) | set(lexicon.LEFT_OPEN_BY)
    assert not set(lexicon.FINDINGS_OF) & set(lexicon.LEFT_OPEN_BY)


def test_every_region_says_what_it_denies() -> None:
    assert set(lexicon.REGIONS_OF) == set(lexicon.NEGATED_WHERE_NORMAL)
    assert set(lexicon.ASSERTED_WHERE_LARGE) <= set(lexicon.REGIONS_OF)
    named = {name for names in lexicon.NEGATED_WHERE_NORMAL.values() for name in names}
    assert named | set(lexicon.ASSERTED_WHERE_LARGE.values()) <= set(lexicon.PHRASES_OF)


def test_no_phrase_stands_in_two_lists_or_is_empty() -> None:
    texts = [*lexicon.PHRASES_OF.values(), *lexicon.REGIONS_OF.values(), *lexicon.CUES.values()]
    lists = [{tuple(words(phrase)) for phrase in lexicon.split_phrases(text)} for text in texts]
    counts = Counter(phrase for phrases in lists for phrase in phrases)
    assert [phrase for phrase, count in counts.items() if count > 1] == []
    assert () not in counts
    assert len(counts) > 800
