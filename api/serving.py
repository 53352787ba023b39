"""What the service serves: model, index and decoder, loaded once, behind one readiness."""

import asyncio
import io
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from api.admission import Turns
from api.failures import Refusal
from api.journal import Figures, log, log_fault
from api.settings import ServeSettings
from medclip_dcl.artifacts.published import Published, read_published
from medclip_dcl.errors import ArtifactStale, MedclipError
from medclip_dcl.index import Filters, Query, RetrievalIndex
from medclip_dcl.studies.images import Decoder, GreyImage
from medclip_dcl.tasks.predictor import Predictor, build_predictor

_WARM_UP_PX = 64


class Serving:
    """The loaded parts of one service.

    Attributes:
        settings: of the service.
        figures: Prometheus figures.
        decoding: turns of the decode workers.
        asking: turns of the model; one at a time, on the one device.
    """

    def __init__(self, settings: ServeSettings, figures: Figures) -> None:
        self.settings = settings
        self.figures = figures
        self.decoding = Turns("decode", settings.decode_workers, figures)
        self.asking = Turns("model", 1, figures)
        self._state = "loading"
        self._index_state = "loading" if settings.index else "no_index"
        self._predictor: Predictor | None = None
        self._published: Published | None = None
        self._decoder: Decoder | None = None
        self._index: RetrievalIndex | None = None

    @property
    def predictor(self) -> Predictor:
        """The model.

        Raises:
            Refusal: it is not loaded.
        """
        if self._predictor is None:
            raise Refusal(self._state)
        return self._predictor

    @property
    def published(self) -> Published:
        """Facts about the model.

        Raises:
            Refusal: it is not loaded.
        """
        if self._published is None:
            raise Refusal(self._state)
        return self._published

    @property
    def decoder(self) -> Decoder:
        """The decode workers, held to the limits that the model was published with.

        Raises:
            Refusal: the model is not loaded.
        """
        if self._decoder is None:
            raise Refusal(self._state)
        return self._decoder

    @property
    def index(self) -> RetrievalIndex:
        """The retrieval index.

        Raises:
            Refusal: there is none, it is not open yet, or it cannot be.
        """
        if self._index is None:
            raise Refusal(self._index_state)
        return self._index

    def check(self) -> None:
        """Say whether everything that is configured answers.

        Raises:
            Refusal: something does not; the code says what.
        """
        for state in (self._state, self._index_state):
            if state not in {"ready", "no_index"}:
                raise Refusal(state)

    async def load(self) -> None:
        """Load and warm up everything; a part that fails leaves its code behind."""
        self._state = await asyncio.to_thread(self._load_model)
        if self._state == "ready" and self.settings.index:
            self._index_state = await asyncio.to_thread(self._open_index)
        ready = self._state == "ready" and self._index_state in {"ready", "no_index"}
        self.figures.ready.set(int(ready))
        log("ready" if ready else "not_ready", model=self._state, index=self._index_state)

    def close(self) -> None:
        """End the decode workers and forget what waits."""
        self.decoding.close()
        self.asking.close()
        if self._decoder is not None:
            self._decoder.close()

    def _load_model(self) -> str:
        try:
            published = read_published(Path(self.settings.model))
            if self.settings.threads:
                torch.set_num_threads(self.settings.threads)
            default = "cuda" if torch.cuda.is_available() else "cpu"
            device = torch.device(self.settings.device or default)
            predictor = build_predictor(published, device)
            decoder = Decoder(published.config.images, self.settings.decode_workers)
            predictor.classify(_warm_up(decoder, self.settings.decode_workers))
        except MedclipError as error:
            # Ours name paths, settings and digests, never contents.
            log("model_unusable", logging.ERROR, error=type(error).__name__, reason=str(error))
            return "model_unusable"
        except Exception as error:  # noqa: BLE001 (readiness reports it, the process lives on)
            log_fault("model_unusable", error)
            return "model_unusable"
        self._published, self._predictor, self._decoder = published, predictor, decoder
        return "ready"

    def _open_index(self) -> str:
        try:
            index = RetrievalIndex.open(Path(self.settings.index), self.predictor.digest)
            vector = self.predictor.embed_sentences(["warm up"])[0]
            index.search(Query("image", 1, vector=vector, filters=Filters()))
        except MedclipError as error:
            log("index_unusable", logging.ERROR, error=type(error).__name__, reason=str(error))
            return "index_mismatch" if isinstance(error, ArtifactStale) else "index_unusable"
        except Exception as error:  # noqa: BLE001 (readiness reports it, the process lives on)
            log_fault("index_unusable", error)
            return "index_unusable"
        self._index = index
        return "ready"


def _warm_up(decoder: Decoder, workers: int) -> GreyImage:
    """Start all decode workers, by as many films at once."""
    with ThreadPoolExecutor(workers) as threads:
        first, *_ = threads.map(decoder.open, [_ramp()] * workers)
        return first


def _ramp() -> bytes:
    ramp = np.tile(np.arange(_WARM_UP_PX, dtype=np.uint8), (_WARM_UP_PX, 1))
    stream = io.BytesIO()
    Image.fromarray(ramp).save(stream, "PNG")
    return stream.getvalue()
