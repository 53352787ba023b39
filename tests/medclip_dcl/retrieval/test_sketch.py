import numpy as np
import torch
from torch.nn import functional

from medclip_dcl.models.settings import SimilarityConfig
from medclip_dcl.models.similarity import image_sentence_scores
from medclip_dcl.retrieval.embeddings import SKETCH, Sketch, fit_sketch, score_at

SIMILARITY = SimilarityConfig(dim=8)


def unit(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return functional.normalize(torch.randn(*shape, generator=generator), dim=-1)


def test_sketches_give_the_exact_scores_at_their_anchors(tmp_path) -> None:
    """With fewer landmarks than the width nothing is left out but the ridge."""
    landmarks, images = unit(40, 8, seed=0).numpy(), unit(60, 9, 8, seed=1)
    sketch = fit_sketch(landmarks, score_at(landmarks, images, SIMILARITY))
    exact = image_sentence_scores(images, torch.from_numpy(landmarks), SIMILARITY).numpy()
    near = sketch.of_vectors(landmarks) @ sketch.of_images(images, SIMILARITY).T
    np.testing.assert_allclose(near, exact, atol=0.02)
    sketch.write(tmp_path)
    again = Sketch.read(tmp_path / SKETCH, 8)
    for name in ("landmarks", "basis", "lift"):
        np.testing.assert_array_equal(getattr(again, name), getattr(sketch, name))


def test_the_best_of_a_sketch_hold_more_of_the_best_than_mean_regions_do() -> None:
    """Small findings: of 225 regions, one answers; the mean of all hardly tells."""
    topics = unit(30, 8, seed=2)
    images = unit(400, 25, 8, seed=3)
    images[:, 7] = topics[torch.arange(400) % 30]
    asked = functional.normalize(topics + 0.1 * unit(30, 8, seed=4), dim=-1)
    landmarks = functional.normalize(topics.repeat(4, 1) + 0.1 * unit(120, 8, seed=5), dim=-1)
    sketch = fit_sketch(landmarks.numpy(), score_at(landmarks.numpy(), images[:200], SIMILARITY))
    exact = image_sentence_scores(images, asked, SIMILARITY).numpy()

    def recall(near: np.ndarray) -> float:
        best = np.argsort(-exact, axis=1)[:, :10]
        kept = np.argsort(-near, axis=1)[:, :40]
        return float(
            np.mean([np.isin(one, other).mean() for one, other in zip(best, kept, strict=True)])
        )

    by_sketch = recall(sketch.of_vectors(asked.numpy()) @ sketch.of_images(images, SIMILARITY).T)
    by_mean = recall(asked.numpy() @ functional.normalize(images.mean(1), dim=-1).numpy().T)
    assert by_sketch > 0.9
    assert by_sketch > by_mean + 0.1


def test_no_vector_has_an_empty_sketch() -> None:
    landmarks = unit(5, 8, seed=0).numpy()
    sketch = fit_sketch(landmarks, score_at(landmarks, unit(6, 4, 8, seed=1), SIMILARITY))
    assert sketch.of_vectors(np.empty((0, 8), dtype=np.float32)).shape == (0, 5)
