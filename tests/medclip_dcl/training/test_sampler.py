from collections import Counter

import numpy as np
import pytest

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.training.sampler import BatchRows, ImageTextSampler, RaggedIndex

STUDIES, BATCH = 50, 8
IMAGE_OF, SENTENCE_OF = (np.repeat(np.arange(50), 1 + np.arange(50) % most) for most in (3, 4))
"""Study of each image and sentence: study i has 1 + i % 3 images and 1 + i % 4 sentences."""


def sampler(shuffle_reports: bool = False, seed: int = 3) -> ImageTextSampler:
    images, sentences = RaggedIndex(IMAGE_OF, STUDIES), RaggedIndex(SENTENCE_OF, STUDIES)
    return ImageTextSampler(images, sentences, BATCH, seed, shuffle_reports)


def as_lists(rows: BatchRows) -> dict[str, list[int]]:
    return {name: numbers.tolist() for name, numbers in vars(rows).items()}


def test_no_batch_holds_a_study_twice_nor_an_epoch():
    drawn = sampler()
    for step in range(60):
        assert len(set(drawn.draw(step).studies.tolist())) == BATCH
    assert drawn.steps_per_epoch == STUDIES // BATCH == 6
    for epoch in range(3):
        steps = range(epoch * 6, epoch * 6 + 6)
        seen = np.concatenate([drawn.draw(step).studies for step in steps])
        assert len(seen) == len(set(seen.tolist())) == 48


def test_a_batch_is_a_function_of_seed_and_step_alone() -> None:
    forward, backward = sampler(), sampler()
    ahead = [as_lists(forward.draw(step)) for step in range(20)]
    behind = [as_lists(backward.draw(step)) for step in reversed(range(20))]
    assert ahead == behind[::-1]
    assert ahead == [as_lists(sampler().draw(step)) for step in range(20)]  # as of a resumed run
    assert ahead[0]["studies"] != as_lists(sampler(seed=4).draw(0))["studies"]


def test_images_and_sentences_belong_to_their_study_and_are_drawn_independently():
    drawn = sampler()
    for step in range(20):
        rows = drawn.draw(step)
        assert np.array_equal(IMAGE_OF[rows.images], rows.studies)
        assert np.array_equal(SENTENCE_OF[rows.sentences], rows.studies)
        assert np.array_equal(rows.reports, rows.studies)
    two_each = RaggedIndex(np.repeat(np.arange(4), 2), 4)
    drawn = ImageTextSampler(two_each, two_each, 4, 0, False)
    rows = [drawn.draw(step) for step in range(250)]
    pairs = Counter(
        pair for row in rows for pair in zip(row.images % 2, row.sentences % 2, strict=True)
    )
    # A quarter of 1000 each; five standard deviations.
    assert len(pairs) == 4
    assert all(abs(count - 250) < 5 * (1000 * 3 / 16) ** 0.5 for count in pairs.values())


def test_a_number_below_one_picks_a_member_in_equal_parts_and_studies_must_suffice():
    index = RaggedIndex(np.array([1, 0, 1, 1]), 2)  # study 0 has member 1; study 1 has 0, 2 and 3
    studies, uniform = np.array([0, 1, 1, 1, 1]), np.array([0.99, 0.0, 0.33, 0.34, 0.99])
    assert index.pick(studies, uniform).tolist() == [1, 0, 0, 2, 3]
    assert len(RaggedIndex(np.array([], dtype=np.int64), 0)) == 0
    assert len(RaggedIndex(np.arange(1000), 1000)) == 1000
    seven = RaggedIndex(np.arange(7), 7)
    with pytest.raises(ConfigError, match="global_batch 8 exceeds the 7 training studies"):
        ImageTextSampler(seven, seven, 8, 0, False)


def test_the_shuffled_control_gives_every_image_one_and_the_same_foreign_report() -> None:
    drawn = sampler(shuffle_reports=True)
    report_of: dict[int, int] = {}
    for step in range(60):
        rows = drawn.draw(step)
        assert (rows.studies != rows.reports).all()
        assert np.array_equal(SENTENCE_OF[rows.sentences], rows.reports)
        for study, report in zip(rows.studies.tolist(), rows.reports.tolist(), strict=True):
            assert report_of.setdefault(study, report) == report
    assert sorted(report_of.values()) == list(range(STUDIES))
