"""Vectors to a retrieval index, and queries to ranked ids."""

from medclip_dcl.index.query import Filters, Hit, Query
from medclip_dcl.index.search import RetrievalIndex

__all__ = ["Filters", "Hit", "Query", "RetrievalIndex"]
