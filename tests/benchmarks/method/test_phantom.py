"""The phantom is what its page says: its shares, its reader, its losses."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from benchmarks.method import phantom
from benchmarks.method.phantom import _offset
from benchmarks.method.phantom_world import TYPES, draw_findings, draw_report, meaning, synonym_of
from benchmarks.method.rows import CROSS, MAIN, Row, factorial
from medclip_dcl.losses.info_nce import info_nce_loss
from medclip_dcl.losses.relations import SAME, UNCLEAR
from medclip_dcl.models.settings import SimilarityConfig
from medclip_dcl.models.similarity import image_sentence_scores


@pytest.fixture(scope="module")
def world() -> phantom.World:
    return phantom.world_of(0)


def sentence_mass(world: phantom.World) -> torch.Tensor:
    """How often each sentence is drawn."""
    mass = np.zeros(len(world.corpus.sentences))
    for report in world.corpus.said:
        np.add.at(mass, report, 1 / len(report) / len(world.corpus.said))
    return torch.from_numpy(mass)


def test_sentences_say_what_they_mean() -> None:
    stated = meaning(("type3-2", "sideleft-1", "carrier0", "modifier7"))
    assert stated.asserted == {TYPES[3]: {"left"}}
    assert synonym_of(("type3-2", "sideleft-1")) == 2
    denied = meaning(("cue1", "type0-0", "type4-1"))
    assert denied.negated == {TYPES[0], TYPES[4]}
    assert meaning(("normal2",)).normal


def test_reports_are_true() -> None:
    generator = np.random.default_rng(0)
    for _ in range(300):
        image = draw_findings(generator)
        shown = {TYPES[fine // 2] for fine in image}
        for sentence in draw_report(image, generator):
            claims = meaning(sentence)
            assert claims.asserted.keys() <= shown
            assert not claims.negated & shown
            assert not (claims.normal and image)


def test_most_negatives_are_false_and_few_share_their_string(world: phantom.World) -> None:
    corpus, mass = world.corpus, sentence_mass(world)
    true = (corpus.relations["truth"] == SAME).double().mean(dim=1)
    assert 63 * float(mass @ true) == pytest.approx(35, abs=3)
    assert sum(map(len, corpus.said)) / len(corpus.said) == pytest.approx(3.1, abs=0.2)


def test_reader_covers_and_errs_as_the_page_says(world: phantom.World) -> None:
    corpus, mass = world.corpus, sentence_mass(world)[:, None]
    true, read = corpus.relations["truth"] == SAME, corpus.relations["claims"]

    def quality(claimed: torch.Tensor) -> tuple[float, float]:
        hits = float((mass * (claimed & true)).sum())
        return hits / float((mass * true).sum()), hits / float((mass * claimed).sum())

    coverage, precision = quality((read == SAME) | (read == UNCLEAR))
    assert coverage == pytest.approx(0.95, abs=0.03)
    assert precision == pytest.approx(0.95, abs=0.03)
    assert quality(read == SAME)[1] >= 0.98


def test_shuffled_reader_knows_nothing_of_the_image(world: phantom.World) -> None:
    true, read = world.corpus.relations["truth"] == SAME, world.corpus.relations["shuffled"] == SAME
    rare = true.double().mean(dim=1) < 0.05  # positive sentences: chance agreement is rare
    assert (read & true)[rare].sum() < 0.2 * read[rare].sum()


def test_score_is_the_product_s() -> None:
    torch.manual_seed(0)
    regions = normalize(torch.randn(5, 9, 32), dim=-1)
    sentences = normalize(torch.randn(7, 32), dim=-1)
    expected = image_sentence_scores(regions, sentences, SimilarityConfig(kind="lse"))
    torch.testing.assert_close(phantom.lse_scores(regions, sentences), expected)


def test_every_row_has_a_loss_of_its_own(world: phantom.World) -> None:
    rows = factorial()
    assert len({row.name for row in rows}) == len(rows)
    assert set(MAIN) <= set(rows)
    torch.manual_seed(0)
    images = torch.arange(phantom.BATCH)
    texts = torch.tensor([world.corpus.said[image][0] for image in images])
    s = 14 * (2 * torch.rand(phantom.BATCH, phantom.BATCH) - 1)
    losses = {}
    for row in rows:
        drawn = torch.Generator().manual_seed(0)
        loss = phantom.loss_of(row, world.corpus, s, images, texts, drawn)
        assert loss.isfinite(), row.name
        if not row.early:
            losses[row.name] = float(loss)
    plain = losses["infonce"]
    assert {name for name, loss in losses.items() if loss == plain} == {"infonce"}


def test_oracle_removal_leaves_true_negatives_alone(world: phantom.World) -> None:
    images = torch.arange(phantom.BATCH)
    texts = torch.tensor([world.corpus.said[image][0] for image in images])
    s = torch.zeros(phantom.BATCH, phantom.BATCH)
    row = Row("remove truth", "debiased", 0.0, relation="truth")
    false = world.corpus.relations["truth"][texts][:, images] == SAME
    kept = (~false).sum(dim=1)
    expected = torch.log1p(kept[kept > 0].double()).mean()
    loss = phantom.loss_of(row, world.corpus, s, images, texts, torch.Generator())
    assert float(loss) == pytest.approx(float(expected), abs=1e-5)


def batch(world: phantom.World) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    images = torch.arange(phantom.BATCH)
    texts = torch.tensor([world.corpus.said[image][0] for image in images])
    return images, texts, 14 * (2 * torch.rand(phantom.BATCH, phantom.BATCH) - 1)


def test_image_anchors_of_cross_do_not_read_the_claims(world: phantom.World) -> None:
    images, texts, s = batch(world)
    rows = {row.name: row for row in CROSS}
    halves = {}
    for name in ("cross", "cross, shuffled"):
        both = phantom.loss_of(rows[name], world.corpus, s, images, texts, torch.Generator())
        alone = dataclasses.replace(rows[name], directions="t2i")
        texts_alone = phantom.loss_of(alone, world.corpus, s, images, texts, torch.Generator())
        halves[name] = 2 * both - texts_alone
    expected = info_nce_loss(s.T)
    torch.testing.assert_close(halves["cross"], expected)
    torch.testing.assert_close(halves["cross, shuffled"], expected)


def test_worse_readers_lose_or_invent_what_they_should(world: phantom.World) -> None:
    relations, mass = world.corpus.relations, sentence_mass(world)[:, None]
    true = relations["truth"] == SAME
    asserts = torch.tensor([bool(meaning(s).asserted) for s in world.corpus.sentences])[:, None]

    def recall(source: str) -> float:
        return float((mass * ((relations[source] == SAME) & true & asserts)).sum())

    assert recall("dropped") / recall("claims") == pytest.approx(0.9, abs=0.03)
    false = (relations["invented"] == SAME) & ~true & asserts
    assert (mass * false).sum() > 2 * (
        mass * ((relations["claims"] == SAME) & ~true & asserts)
    ).sum()


def test_offset_is_the_level_of_a_prompt() -> None:
    scores = np.random.default_rng(0).normal(size=(3, 50)) / 10
    corrected = np.exp(phantom.GAMMA_SQUARED * (scores - _offset(scores)[:, None]))
    np.testing.assert_allclose(corrected.mean(axis=1), 1, rtol=1e-12)
