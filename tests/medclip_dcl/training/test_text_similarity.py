from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from medclip_dcl.likelihood.masked_lm import load_language_model
from medclip_dcl.losses.negatives import remove_by_similarity
from medclip_dcl.models.text_encoder import TextEncoder, load_text_weights, load_trained_projection
from medclip_dcl.training.corpus import Corpus, TokenTable
from medclip_dcl.training.sampler import ImageTextSampler, RaggedIndex
from medclip_dcl.training.text_similarity import TextSpace, closest_threshold
from tests.support.bert import tiny_bert, write_cxr_bert
from tests.support.corpus import KINDS, read_tiny_corpus

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def corpus(work: Path) -> Corpus:
    return read_tiny_corpus(work)


def sampler_of(corpus: Corpus) -> ImageTextSampler:
    return ImageTextSampler(corpus.images, corpus.sentences, 8, 0, False)


def text_encoder(folder: Path) -> tuple[TextEncoder, TokenTable]:
    model = load_language_model(folder)
    encoder = TextEncoder(model.model.config, 16)
    load_text_weights(encoder, folder)
    texts = [said for _, *both in KINDS for said in both]
    return encoder, TokenTable(model.tokenizer, texts, 32)


def space(encoder: TextEncoder, checkpoint: Path | None = None) -> TextSpace:
    return TextSpace(encoder, checkpoint, CPU)


@pytest.mark.parametrize(("share", "threshold"), [(0.1, 1 - 1e-4), (0.2, 1 - 1e-4), (0.3, 0.0)])
def test_the_threshold_lies_where_the_closest_pairs_of_batches_end(corpus, share, threshold):
    """6 of 24 studies are of a kind, so 5 of 23 pairs of a batch, 22 %, have cosine 1, others 0."""
    kinds = [next(k for k, (_, *said) in enumerate(KINDS) if text in said) for text in corpus.texts]
    found = closest_threshold(torch.eye(4)[kinds], corpus, sampler_of(corpus), share)
    assert found == pytest.approx(threshold, abs=1e-6)


def test_about_the_share_that_is_asked_is_removed_from_later_batches() -> None:
    """600 studies with a sentence each, no two alike: no pair stands exactly on the threshold."""
    count, sampled = 600, 40
    rows = np.arange(count)
    index = RaggedIndex(rows, count)
    ids = tuple(map(str, rows))
    eta = np.zeros(count, np.float32)
    corpus = Corpus(ids, frozenset(), index, ids, rows, rows, index, rows, ids, ids, eta)
    vectors = torch.nn.functional.normalize(torch.randn(count, 8), dim=-1)
    sampler = ImageTextSampler(index, index, 32, 0, False)
    threshold = closest_threshold(vectors, corpus, sampler, 0.1)
    kept = []
    for step in range(sampled, 2 * sampled):
        some = vectors[torch.from_numpy(sampler.draw(step).sentences)]
        kept.append(remove_by_similarity(some @ some.T, torch.arange(32), threshold).sum() / 32)
    assert 1 - np.mean(kept) / 31 == pytest.approx(0.1, abs=0.01)


def test_mean_states_are_centred_on_the_training_sentences(work: Path, corpus: Corpus) -> None:
    encoder, _ = text_encoder(work / "language_model")
    tokenizer = load_language_model(work / "language_model").tokenizer
    tokens = TokenTable(tokenizer, corpus.texts, 32)
    chosen = space(encoder.train())
    assert chosen.name == "mean"
    found = chosen.fit(corpus, tokens)
    assert encoder.training  # and dropout played no part
    encoder.eval()
    states = []
    for text in corpus.texts:  # one by one: no padding
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        states.append(encoder.backbone(input_ids=ids)[0][0].mean(0).detach())
    centre = torch.stack([states[text] for text in corpus.text_of]).mean(0)
    for vector, state in zip(found, states, strict=True):
        expected = (state - centre) / (state - centre).norm()
        torch.testing.assert_close(vector, expected, atol=1e-4, rtol=1e-3)
    assert torch.equal(chosen.vectors(corpus, tokens), found)  # the centre stays


def released(folder: Path, layout: str) -> Path:
    write_cxr_bert(folder, tiny_bert(), layout=layout)
    return folder


def test_the_checkpoints_own_projection_is_its_formula(tmp_path: Path) -> None:
    folder = released(tmp_path / "specialized", "specialized")
    weights = load_file(folder / "model.safetensors")
    head = {key: torch.randn_like(value) for key, value in weights.items() if "cls_proj" in key}
    save_file(weights | head, folder / "model.safetensors", metadata={"format": "pt"})
    head = {key.removeprefix("cls_projection_head."): value for key, value in head.items()}
    encoder, tokens = text_encoder(folder)
    chosen = space(encoder, folder)
    assert chosen.name == "projection"
    trained = load_trained_projection(folder, encoder.backbone.config)
    assert trained is not None
    ids, mask = tokens.padded(np.arange(3))
    cls = trained.backbone(input_ids=ids, attention_mask=mask)[0][:, 0]
    hidden = cls @ head["dense_to_hidden.weight"].T + head["dense_to_hidden.bias"]
    hidden = hidden * (1 + torch.erf(hidden / 2**0.5)) / 2  # GELU
    spread = (hidden.var(dim=1, keepdim=True, correction=0) + 1e-12).sqrt()
    hidden = (hidden - hidden.mean(dim=1, keepdim=True)) / spread
    hidden = hidden * head["LayerNorm.weight"] + head["LayerNorm.bias"]
    expected = hidden @ head["dense_to_output.weight"].T + head["dense_to_output.bias"]
    torch.testing.assert_close(trained(ids, mask), expected, atol=1e-4, rtol=1e-4)


def test_a_checkpoint_without_a_projection_is_compared_by_mean_states(tmp_path: Path) -> None:
    folder = released(tmp_path / "general", "general")
    encoder, _ = text_encoder(folder)
    assert space(encoder, folder).name == "mean"
