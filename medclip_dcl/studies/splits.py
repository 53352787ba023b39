"""One split per patient; patients with boxes never train."""

import hashlib
from collections.abc import Collection, Iterable, Mapping

_STRICTEST = ("test", "validate", "train")


def assign_splits(
    subjects: Iterable[str],
    given: Mapping[str, Collection[str]],
    evaluated: Collection[str],
    validate_share: float,
    test_share: float,
) -> dict[str, str]:
    """Give every patient one split.

    Args:
        subjects: ids of all patients.
        given: patient -> splits that the source names for its films; where they differ
            the one furthest from training counts: test, then validate, then train.
        evaluated: patients of the box table; always `test`.
        validate_share: share of the patients without a given split put into `validate`.
        test_share: share of them put into `test`.

    Returns:
        Patient -> `train`, `validate` or `test`.

    Source: ours; by hash of the patient's id, so that a patient stays where it is when
        others come or go.
    """
    chosen = {}
    for subject in subjects:
        named = given.get(subject, ())
        if subject in evaluated:
            chosen[subject] = "test"
        elif named:
            chosen[subject] = next(split for split in _STRICTEST if split in named)
        else:
            chosen[subject] = _by_hash(subject, validate_share, test_share)
    return chosen


def _by_hash(subject: str, validate_share: float, test_share: float) -> str:
    named = f"split {subject}"  # another hash of the same id must not be a function of this one
    digest = hashlib.sha256(named.encode("utf-8", "surrogatepass")).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    if place < test_share:
        return "test"
    return "validate" if place < test_share + validate_share else "train"
