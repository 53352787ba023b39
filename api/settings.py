"""Settings of the service: a YAML file, then MEDCLIP_* variables, then the launcher's arguments."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from medclip_dcl.core.settings import Section, read_settings_of
from medclip_dcl.models.settings import EngineName, Precision
from medclip_dcl.retrieval import RetrievalConfig

_PREFIX = "MEDCLIP_"
_GATEWAY = "MEDCLIP_GATEWAY_"  # settings of another process
FILE_VARIABLE = "MEDCLIP_CONFIG"
"""Names the YAML file where the launcher is not used."""

MAX_FIELDS = 64
"""Most text fields of a form."""
MAX_FIELD_KB = 64
"""Largest text field of a form, KiB."""
MAX_FORM_KB = 1024
"""Largest form without files (`application/x-www-form-urlencoded`), KiB."""
MAX_PHRASES = 16
"""Most phrases of one `/ground`."""
MAX_FINDINGS = 32
"""Most findings of one `/classify`; eight prompts each on average."""
MAX_IMAGES = 32
"""Most images of one `/classify`, `/ground` or `/embed`, and most sentences of one `/embed`."""
MAX_TEXT_CHARS = 1000
"""Longest phrase, prompt or query, characters: BERT reads 512 word pieces at most."""
MAX_HITS = 100
"""Most hits of one `/retrieve`."""
MAX_ID_CHARS = 128
"""Longest id of a patient and longest name of a view, characters."""

MEBIBYTE = 2**20


class ServeSettings(Section):
    """Every setting of the service."""

    model: str
    """Folder of the published model, or OWNER/NAME@COMMIT of a hub, fetched when the service
    starts."""
    plugins: tuple[str, ...] = ()
    """Modules or .py files of your own, which register routes, or the model's image encoder: they
    are imported; name what you trust."""
    index: str = ""
    """Folder of the retrieval index; empty: `/retrieve` is not offered."""
    retrieval: RetrievalConfig = RetrievalConfig()
    """Where candidates are searched: `{"uri": ...}`; in memory where nothing is said."""
    device: str = ""
    """Device that runs the model, such as `cpu` or `cuda:0`; empty: a GPU where there is one."""
    engine: EngineName = "auto"
    """Who runs the encoders, as `inference.engine` of a config; `auto`: the fastest on the device
    that is installed and answers like PyTorch."""
    precision: Precision = "auto"
    """Of the encoders, as `inference.precision` of a config."""
    threads: Annotated[int, Field(ge=0)] = 0
    """Threads of the forward pass on a CPU; 0: one per core."""
    host: str = "127.0.0.1"
    """Address that the launcher binds."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port that the launcher binds; 0: a free one, which it prints."""
    key_file: str = ""
    """File with API keys, one a line, each of 32 characters or more; not readable by others."""
    allow_anonymous: bool = False
    """Answer without a key; the launcher refuses this beyond loopback."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that requests may ask for, without port; empty: the loopback names where
    requests are anonymous, else any."""
    publish_schema: bool = False
    """Whether `/openapi.json` is served, to those who have a key."""
    batch: Annotated[int, Field(gt=0)] = 8
    """Images in one forward pass at most: those that wait when it begins; none waits for others."""
    queue: Annotated[int, Field(gt=0)] = 16
    """Questions inside at once, counted from their last byte; others get 503 and Retry-After."""
    deadline_s: Annotated[float, Field(gt=0)] = 30
    """Seconds after which a question that still waits for its forward pass is given up."""
    body_deadline_s: Annotated[float, Field(gt=0)] = 30
    """Seconds that a client may take to send a body."""
    drain_s: Annotated[int, Field(ge=0)] = 30
    """Seconds that requests inside get when the service is asked to stop."""
    max_body_mb: Annotated[int, Field(gt=0, le=1024)] = 64
    """Largest body, MiB, multipart frame included."""
    max_bodies_mb: Annotated[int, Field(gt=0)] = 512
    """Bytes of all bodies and answers held at once, MiB; beyond them slow clients lose theirs, and
    others get 503 and Retry-After."""
    decode_workers: Annotated[int, Field(gt=0)] = 2
    """Processes that decode images."""
    max_megapixels: Annotated[float, Field(gt=0)] = 40
    """Largest declared rows x columns of an image, millions of pixels; the model may ask for
    less, as it may for both limits below."""
    decode_deadline_s: Annotated[float, Field(gt=0)] = 8
    """Seconds that one image may take to decode."""
    decode_memory_mb: Annotated[int, Field(gt=0)] = 1024
    """Memory that a decode worker may allocate, MiB."""
    watch_s: Annotated[float, Field(ge=0)] = 2
    """Seconds between looks at the folders of model and index, which are taken into service when
    other ones were renamed into their place; 0: they are never looked at again."""


def read_service_settings(
    file: Path | None, environment: Mapping[str, str], **overrides: Any
) -> ServeSettings:
    """Gather and validate the settings: of a YAML file, then of variables, then `overrides`.

    `MEDCLIP_QUEUE=8` sets `queue`; see `config.read_settings_of`, also for what is raised.
    """
    elsewhere = (FILE_VARIABLE, *(name for name in environment if name.startswith(_GATEWAY)))
    own = {name: value for name, value in environment.items() if name not in elsewhere}
    return read_settings_of(ServeSettings, file, own, _PREFIX, **overrides)
