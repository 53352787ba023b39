"""Language of reports: what is not English is noticed, for the labeler reads English alone.

A text is scored by its words, accents dropped: small words and words of chest reports of each
language, against those of English and of the labeler's own lexicon. Words that both use count for
neither. Source: ours; the small words as evidence are the idea of Cavnar and Trenkle (1994).
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

import yaml

from medclip_dcl.text.labeler import lexicon

ENGLISH = "en"
OTHER = "other"
"""Name of a language in another script than Latin."""

WORDS_OF: dict[str, str] = yaml.safe_load(
    Path(__file__).with_name("languages.yaml").read_text(encoding="utf-8")
)
"""Language, and `english` for English beyond the lexicon -> words."""
_WORD = re.compile(r"[^\W\d_]{2,}")
_UMLAUT = re.compile(r"([aou])e")
_SHAPE = re.compile(
    r"[a-z]*(?:megalie|megalia|thorace|torax|ektase|ektasen|ctasia|ctasie|ttasia|cion|ciones|coes|cao|"
    r"zione|zioni|ierung|ungen|lich|liche|licher|keit|heit|aire|aires|eux|euse|itis(?:ch|che|cher)|"
    r"isch|ische|ischer|ento|mente|ada|adas|ados|ico|icos|ica|icas|oso|osa|idad|idade|ite|erguss|"
    r"vocht|zijdig|zijdige|seitig|seitige|seitiger)"
)
"""Endings that English words hardly have; looked at where no list has the word."""


def _folded(word: str) -> str:
    if not word.isascii():
        marks = unicodedata.normalize("NFD", word.replace("\u00df", "ss").replace("\u0153", "oe"))
        marks = "".join(letter for letter in marks if not unicodedata.combining(letter))
        word = marks.translate(str.maketrans("\u00f8\u00e6\u0142\u0131", "oali"))
    return _UMLAUT.sub(r"\1", word)


def _words_of(text: str) -> set[str]:
    return {_folded(word) for word in _WORD.findall(text.lower())}


_ENGLISH_WORDS = _words_of(WORDS_OF["english"]).union(
    *map(_words_of, lexicon.CUES.values()),
    *map(_words_of, lexicon.PHRASES_OF.values()),
    *map(_words_of, lexicon.REGIONS_OF.values()),
)
_LANGUAGES_OF: dict[str, frozenset[str]] = {}
for _name, _list in WORDS_OF.items():
    if _name != "english":
        for _word in _words_of(_list):
            _LANGUAGES_OF[_word] = _LANGUAGES_OF.get(_word, frozenset()) | {_name}


@lru_cache(maxsize=1 << 16)
def _languages_of(word: str) -> frozenset[str]:
    """Languages that a word speaks for; none where it is no evidence."""
    if word > "\u0370" and not word.isascii():
        return frozenset({OTHER})
    plain = _folded(word)
    is_english = plain in _ENGLISH_WORDS or (
        len(plain) > 4 and plain.endswith("s") and plain[:-1] in _ENGLISH_WORDS
    )
    languages = _LANGUAGES_OF.get(plain, frozenset())
    if is_english:
        return frozenset() if languages else frozenset({ENGLISH})
    if languages:
        return languages
    shaped = len(plain) > 5 and _SHAPE.fullmatch(plain)
    return frozenset({""}) if shaped or (not word.isascii() and len(word) > 3) else frozenset()


def language_of(text: str) -> str:
    """Name the language that a text reads like: "en", a code of `languages.yaml`, "other", or "".

    Empty where no word of it speaks for a language.
    """
    english = foreign = 0
    votes: dict[str, float] = defaultdict(float)
    for word in _WORD.findall(text.lower()):
        languages = _languages_of(word)
        if ENGLISH in languages:
            english += 1
        elif languages:
            foreign += 1
            for name in languages - {""}:
                votes[name] += 1 / len(languages)
    if foreign > english:
        return max(sorted(votes), key=votes.__getitem__) if votes else OTHER
    return ENGLISH if english else ""


def prevailing(languages: Iterable[str]) -> str:
    """The language of most sentences; another than English where they are evenly divided."""
    counts = Counter(language for language in languages if language)
    english = counts.pop(ENGLISH, 0)
    if counts.total() >= max(1, english):
        return counts.most_common(1)[0][0]
    return ENGLISH if english else ""


def count_languages(texts: Iterable[str]) -> Counter[str]:
    """Count the texts of each language, as `language_of` names it."""
    return Counter(map(language_of, texts))


NAMES = {
    "de": "German", "es": "Spanish", "fr": "French", "it": "Italian", "nl": "Dutch",
    "pl": "Slavic or another", "pt": "Portuguese", "sv": "Nordic", OTHER: "another script",
}  # fmt: skip
_MOST_FOREIGN = 0.05
"""Share of reports that may read like another language before it is said."""


def language_warning(languages: Mapping[str, int]) -> str:
    """Warn of a corpus that is not English, from its reports by language; empty: there is no need.

    Says what follows for objectives that read claims, and the way out.
    """
    foreign = {name: count for name, count in languages.items() if name not in {"", ENGLISH}}
    reports, others = sum(languages.values()), sum(foreign.values())
    if others <= _MOST_FOREIGN * reports:
        return ""
    names = ", ".join(NAMES[name] for name in sorted(foreign, key=lambda name: -foreign[name])[:3])
    return (
        f"{others} of {reports} reports read like another language than English ({names}); they "
        "get no labels, and an objective that reads claims (multipositive, relation: claims) "
        "learns nothing from them: name labels of your own in claims.table, or set "
        "objective.kind: infonce with directions: both and relation: none"
    )
