"""Settings of Table 1: which rows, how many runs of each."""

from typing import Annotated

from pydantic import Field

from medclip_dcl.config.evaluation import AdapterConfig
from medclip_dcl.config.section import Section


class OthersModelConfig(Section):
    """Somebody's model as a row of the table."""

    name: str
    """Short name of the row."""
    adapter: AdapterConfig
    """The model."""


class Table1Config(Section):
    """Every row of Table 1, trained and evaluated (`table1`)."""

    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (0, 1, 2, 3, 4)
    """Runs of each row; a seed draws weights, batches and views. The corpus is one."""
    rows: tuple[str, ...] = ()
    """Rows by their short names, which an unknown one makes it list; empty: the paper's nine."""
    variants: bool = False
    """Whether the project's own rows and the shuffled control follow; `rows` may name them."""
    processes: Annotated[int, Field(ge=1)] = 2
    """Runs at a time, one thread each."""
    models: tuple[OthersModelConfig, ...] = ()
    """Other people's models, evaluated and not trained, each a `name` and an `adapter`; the name
    `biovil` takes the place of the row that is trained in BioViL's stead."""
