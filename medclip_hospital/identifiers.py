"""UIDs by hash, and codes of findings: nothing here is drawn, so the same answer names the same."""

import hashlib
import unicodedata
import uuid

from pydicom.sr.coding import Code

from medclip_dcl.schemas import FindingAnswer, HeadAnswer

SCHEME = "99MEDCLIP"
"""Designator of the private coding scheme; every object that uses it declares it."""

_NAMESPACE = uuid.UUID("6f0d1a52-7f0e-5b0a-9a3c-5d1f6c1b2e47")
_MEANING_CHARACTERS = 64


def make_uid(*parts: str) -> str:
    """Make a UID of what it stands for: equal parts, equal UID.

    Source: DICOM PS3.5, B.2.
    """
    return f"2.25.{uuid.uuid5(_NAMESPACE, chr(0).join(parts)).int}"


def private_code(meaning: str) -> Code:
    """Make a code of `SCHEME`, whose value is a hash of its meaning."""
    meaning = plain(meaning)[:_MEANING_CHARACTERS]
    return Code(hashlib.sha256(meaning.encode()).hexdigest()[:12].upper(), SCHEME, meaning)


def finding_code(finding: FindingAnswer) -> Code:
    """Give the code of a finding's prompt file; a private one where that has none.

    Which code of a terminology fits is never guessed from a name.
    """
    if finding.code is None:
        return private_code(label_of(finding))
    return Code(finding.code.value, finding.code.scheme, plain(finding.code.meaning))


def label_of(finding: FindingAnswer | HeadAnswer) -> str:
    """Give the name of a finding or of a head as it is shown: with a capital, in ASCII."""
    name = plain(finding.name)
    return name[:1].upper() + name[1:]


def decision_of(finding: FindingAnswer | HeadAnswer) -> str:
    """Put a decision into a word or two."""
    if finding.decision is None:
        return "not decided"
    return "present" if finding.decision else "absent"


def plain(text: str) -> str:
    """Write a text in ASCII, which every character set of an image can hold."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode() or "unnamed"
