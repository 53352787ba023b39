"""Section about use: cases that the index finds."""

from typing import Any

import numpy as np
import torch

from medclip_dcl.core.errors import ArtifactStale
from medclip_dcl.core.tables import spread_rows
from medclip_dcl.inference import model_package
from medclip_dcl.retrieval import embeddings
from medclip_dcl.retrieval.search import Query, RetrievalIndex

from .charts import heat_uri, jpeg_uri
from .sources import EXAMPLES, Sources

View = dict[str, Any]

_QUERIES = 3
_HITS = 4
_COMMON = 2  # studies that say a sentence before it is asked for: else one image alone is right


def show_cases(sources: Sources) -> list[View]:
    """Ask the index for images by sentences that it holds.

    Nothing in a private report, or where the index belongs to another model.
    """
    found = sources.get(embeddings.ARTIFACT, model_package.ARTIFACT)
    if found is None or sources.settings.private:
        return []
    try:
        index = RetrievalIndex.open(found[0].path, found[1].digest)
    except ArtifactStale:
        return []
    texts = index.studies.texts
    counts = np.array(texts.column("studies").to_pylist())
    asked = np.flatnonzero(counts >= _COMMON)
    asked = asked[np.argsort(-counts[asked], kind="stable")]
    indices = spread_rows(len(asked), min(_QUERIES, EXAMPLES))
    return [_case(index, int(asked[position])) for position in indices]


def _case(index: RetrievalIndex, row: int) -> View:
    text = index.studies.text(row)
    vector = torch.from_numpy(index.sentences.gather(np.array([row]))[0])
    hits = index.search(Query(target="image", k=_HITS, vector=vector))
    shown = []
    for hit in hits:
        picture = index.picture(hit.id)
        regions = index.regions.gather(np.array([index.row_of[hit.id]]))[0]
        image = {  # pictures of an index are square
            "uri": None if picture is None else jpeg_uri(picture),
            "heat": heat_uri(regions.astype(np.float32) @ vector.numpy()),
        }
        shown.append(
            {
                "image": image | {"width": 1, "height": 1, "boxes": ()},
                "score": hit.score,
                "split": hit.split,
                "says": list(hit.texts[:3]),
                "is_said": text["text"] in hit.texts,
            }
        )
    return {"query": text["text"], "studies": text["studies"], "hits": shown}
