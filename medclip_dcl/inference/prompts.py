"""Prompts: how each finding is asked for in words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medclip_dcl.core.errors import ConfigError, QueryError
from medclip_dcl.core.settings import read_yaml

_PROMPTS_VERSION = 1
_PROMPT_KEYS = {"name", "label", "code", "positive", "negative"}
_CODE_LENGTHS = {"value": 16, "scheme": 16, "meaning": 64}  # characters; DICOM PS3.3, 8.1 to 8.3


@dataclass(frozen=True)
class FindingCode:
    """Code of a finding in a coding scheme."""

    value: str
    """The code."""
    scheme: str
    """DICOM's designator of the scheme, such as SCT for SNOMED CT."""
    meaning: str
    """What the code means, in words."""


@dataclass(frozen=True)
class Finding:
    """A finding and its prompts, a sentence or several a side."""

    name: str
    """How it is called in answers."""
    positive: tuple[str, ...]
    """Sentences that assert it, at least one."""
    negative: tuple[str, ...] = ()
    """Sentences that deny it. Without one, the positive prompts' usual score stands in their place:
    their level over the model's bank of images."""
    label: str = ""
    """Column of the label table that holds its truth; empty: none."""
    code: FindingCode | None = field(default=None, compare=False)
    """Its code in DICOM answers; None: a private one is made from the name."""

    def __post_init__(self) -> None:
        for side in ("positive", "negative"):
            value = getattr(self, side)
            if isinstance(value, str | list):  # one sentence is one, and not its letters
                value = (value,) if isinstance(value, str) else tuple(value)
                object.__setattr__(self, side, value)


def parse_prompts(tree: Any, own: Sequence[Finding] = ()) -> tuple[Finding, ...]:
    """Turn what findings are asked by into findings, one or a list of them.

    Args:
        tree: of each finding its name; its positive and its negative prompt, as a list of two; a
            `Finding`; or a mapping with `name` and `positive`, and perhaps `negative`, `label`, and
            `code` with `value`, `scheme` and `meaning`. A side is one sentence or a list of them. A
            name is that of one of `own`, or of its label; else "mass" is asked as "Mass" against
            "No mass", and a sentence, which ends with a full stop, without a negative prompt.
        own: the findings of a model.

    Raises:
        QueryError: there is none; an entry lacks a key, has an unknown one, an empty side, or a
            name that was used before. The message gives the entry's number, never its text.
    """
    one = isinstance(tree, str | Mapping | Finding)
    if not (one or isinstance(tree, Iterable)) or isinstance(tree, bytes):
        raise QueryError("findings must be names, pairs of prompts or mappings, one or a list")
    entries = [tree] if one else list(tree)
    if not entries:
        raise QueryError("findings must be a list with at least one entry")
    findings = tuple(_finding(entry, number, own) for number, entry in enumerate(entries))
    if len({finding.name for finding in findings}) < len(findings):
        raise QueryError("two findings bear the same name; give each its own")
    return findings


def read_prompts(path: Path) -> tuple[Finding, ...]:
    """Read a prompt file such as `configs/prompts/chex5.yaml`.

    Raises:
        ConfigError: the file cannot be read, is of another version, or an entry is malformed.
    """
    tree = read_yaml(path, "prompt file")
    if tree.get("format_version") != _PROMPTS_VERSION:
        raise ConfigError(f"prompts {path} must say format_version: {_PROMPTS_VERSION}")
    try:
        return parse_prompts(tree.get("findings"))
    except QueryError as error:
        raise ConfigError(f"prompts {path}: {error}") from error


def _finding(entry: Any, number: int, own: Sequence[Finding]) -> Finding:
    if isinstance(entry, str):
        return _named(" ".join(entry.split()), number, own)
    if isinstance(entry, Finding):
        entry = {name: value for name, value in vars(entry).items() if name != "code"} | {
            "code": entry.code and vars(entry.code)
        }
    if isinstance(entry, list | tuple) and len(entry) == 2:
        positive, negative = (_side(side, number) for side in entry)
        return Finding(positive[0], positive, negative)
    if not isinstance(entry, Mapping) or not set(entry) <= _PROMPT_KEYS:
        keys = sorted(_PROMPT_KEYS)
        raise QueryError(
            f"finding {number} must be a name, a positive and a negative prompt, or a mapping with "
            f"keys among {keys}"
        )
    name, label = entry.get("name"), entry.get("label", "")
    if not isinstance(name, str) or not name.strip() or not isinstance(label, str):
        raise QueryError(f"finding {number} needs a name, and a label that is text if any")
    positive = _side(entry.get("positive"), number)
    denied = entry.get("negative", ())  # a card writes what is left out as an empty list
    negative = () if denied in ([], ()) else _side(denied, number)
    return Finding(name.strip(), positive, negative, label, _code(entry.get("code"), number))


def _named(name: str, number: int, own: Sequence[Finding]) -> Finding:
    for finding in own:
        if name and name.casefold() in {finding.name.casefold(), finding.label.casefold()}:
            return finding
    word = name.partition(" ")[0].casefold()
    if not name or word in {"no", "not", "without"}:
        raise QueryError(
            f"finding {number} is empty or a denial; name what is looked for, or give a positive "
            "and a negative prompt"
        )
    if name.endswith("."):
        return Finding(name, (name,))
    is_word = name[:1].isupper() and not name[1:2].isupper()  # an abbreviation stays as it is
    inside = name[:1].lower() + name[1:] if is_word else name
    return Finding(name, (name[:1].upper() + name[1:],), (f"No {inside}",))


def _code(value: Any, number: int) -> FindingCode | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or set(value) != set(_CODE_LENGTHS):
        raise QueryError(f"code of finding {number} must have {', '.join(_CODE_LENGTHS)}")
    parts = {name: str(part).strip() for name, part in value.items()}
    for name, longest in _CODE_LENGTHS.items():
        if not 0 < len(parts[name]) <= longest or not parts[name].isprintable():
            raise QueryError(f"{name} in the code of finding {number} needs 1 to {longest} letters")
    return FindingCode(**parts)


def _side(value: Any, number: int) -> tuple[str, ...]:
    sentences = [value] if isinstance(value, str) else value
    if not isinstance(sentences, list | tuple) or not sentences:
        raise QueryError(
            f"finding {number} needs a positive prompt, and a negative that is one or a list if any"
        )
    if not all(isinstance(sentence, str) and sentence.strip() for sentence in sentences):
        raise QueryError(f"finding {number} has a prompt that is empty or no text")
    return tuple(" ".join(sentence.split()) for sentence in sentences)
