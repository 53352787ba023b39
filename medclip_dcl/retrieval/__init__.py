"""Embeddings to a retrieval index, queries to ranked ids; here the settings of both."""

from typing import Annotated

from pydantic import Field

from medclip_dcl.core.settings import Section


class IndexConfig(Section):
    """Retrieval (`build_index`)."""

    candidates: Annotated[int, Field(gt=0)] = 300
    """Candidates that are re-ranked by the exact score. `build_index` says as
    `candidate_recall_at_10` how many of the exact best images they hold; where that is too low,
    give more."""
    pictures: bool = True
    """Whether thumbnails are kept, for the report and the viewer."""
    shard_rows: Annotated[int, Field(gt=0)] = 1024
    """Images, or sentences, in one shard: the unit that is resumed."""


class RetrievalConfig(Section):
    """Engine that finds candidates of a retrieval (`build_index`, the service)."""

    uri: str = ""
    """Empty: in memory, exact; `http://...`: a Milvus cluster; a path that ends in `.db`:
    milvus-lite, for one process."""
    token_file: str = ""
    """File with `user:password` or an API key of the cluster, not readable by others."""
