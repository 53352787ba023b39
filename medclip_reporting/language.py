"""Language of reports: the sentence splitter and the rules of the labeler read English alone."""

import re
from collections.abc import Iterable

_WORD = re.compile(r"[^\W\d_]+")
_ENGLISH = "the of is are and with there no or to has been within without seen left right"
_OTHER = (  # German, French, Spanish, Portuguese, Italian, Dutch, Swedish, Polish
    "der die das und kein keine ist nicht mit links rechts le la les des pas est une avec droite "
    "gauche el los las del sin se con una sem com uma il della senza non het een geen niet inga "
    "och ej nie bez oraz"
)
_ENGLISH_WORDS, _OTHER_WORDS = (frozenset(words.split()) for words in (_ENGLISH, _OTHER))
_LEAST = 2  # words of another language: one may be a name
_LEAST_LATIN = 0.7  # share of letters


def is_foreign(text: str) -> bool:
    """Return whether a report reads like another language than English, by its small words."""
    words = [word.lower() for word in _WORD.findall(text)]
    letters = "".join(words)
    if sum(letter < "\u0250" for letter in letters) < _LEAST_LATIN * len(letters):
        return True
    other = sum(word in _OTHER_WORDS for word in words)
    return other >= _LEAST and other > sum(word in _ENGLISH_WORDS for word in words)


def count_foreign(texts: Iterable[str]) -> int:
    """Count the reports that read like another language than English."""
    return sum(map(is_foreign, texts))
