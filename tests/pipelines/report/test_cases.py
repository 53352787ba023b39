"""Images that the index finds, and where each fits the sentence."""

import base64
import io

import numpy as np
import torch
from PIL import Image

from medclip_dcl.inference import model_package
from medclip_dcl.retrieval import embeddings
from medclip_dcl.retrieval.search import Query, RetrievalIndex
from pipelines.report.charts import jpeg_uri
from pipelines.report.outcomes import show_cases
from pipelines.report.preflight import ReportConfig
from pipelines.report.sources import find_sources


def test_the_layer_of_a_hit_is_strongest_where_the_image_fits_the_sentence_best(published):
    kinds = (model_package.ARTIFACT, embeddings.ARTIFACT)
    sources = find_sources(published, ReportConfig(), False, {}, 0, kinds)
    index = RetrievalIndex.open(published / "index", sources.artifacts["model"].digest)
    case = show_cases(sources)[0]
    row = index.studies.texts.column("text").to_pylist().index(case["query"])
    sentence = index.sentences.gather(np.array([row]))[0]
    hits = index.search(Query(target="image", k=4, vector=torch.from_numpy(sentence)))
    for hit, shown in zip(hits, case["hits"], strict=True):
        assert shown["image"]["uri"] == jpeg_uri(index.picture(hit.id))
        regions = index.regions.gather(np.array([index.row_of[hit.id]]))[0].astype(np.float64)
        best = np.unravel_index((regions @ sentence).argmax(), regions.shape[:2])
        layer = base64.b64decode(shown["image"]["heat"].removeprefix("data:image/png;base64,"))
        opaque = np.asarray(Image.open(io.BytesIO(layer)).convert("RGBA"))[..., 3]
        cell_px = np.array(opaque.shape) / regions.shape[:2]
        centre = ((np.array(best) + 0.5) * cell_px).astype(int)
        assert opaque[tuple(centre)] >= opaque.max() - 8  # of 255; a palette of 64 rounds
