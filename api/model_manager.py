"""What the service serves: one model and one index at a time, behind one readiness."""

import asyncio
import io
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from fastapi import Depends, Request
from PIL import Image
from pydantic import ValidationError

from medclip_dcl.core.artifact import HEADER
from medclip_dcl.core.errors import (
    ArtifactStale,
    ArtifactUnreadable,
    CheckpointError,
    ConfigError,
    MedclipError,
)
from medclip_dcl.data.grayscale import SquareImage
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.inference.model_package import read_model_package
from medclip_dcl.inference.predictor import Predictor, build_predictor
from medclip_dcl.models.public.weights import PACKAGE, fetch_weights
from medclip_dcl.models.settings import InferenceConfig
from medclip_dcl.retrieval.search import Query, RetrievalIndex

from .auth import file_mark
from .batching import MicroBatcher, WorkerSlots, start_threads
from .errors import ApiError
from .logging import Metrics, log, log_fault
from .memory import give_memory_back
from .settings import MEBIBYTE, ServeSettings

_SEARCHES = 4  # at once; an engine that is elsewhere is waited for
_PHRASE = "pleural effusion"  # what a model is tried with
_FINE = frozenset({"ready", "no_index"})

_Result = TypeVar("_Result")
_Mark = tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True)
class ServingState:
    """Model and index that answer a request from its beginning to its end.

    The properties raise an `ApiError` with the reason where there is nothing to give.
    """

    settings: ServeSettings
    metrics: Metrics
    decode_slots: WorkerSlots
    batcher: MicroBatcher
    search_slots: WorkerSlots
    draw_slots: WorkerSlots
    state: str = "loading"  # `ready`, or the code of the failure that the model's absence is
    index_state: str = "loading"  # the same of the index; `no_index` where none is configured
    model: Predictor | None = None
    workers: Decoder | None = None
    images: RetrievalIndex | None = None

    @property
    def predictor(self) -> Predictor:
        """The model."""
        if self.model is None:
            raise ApiError(self.state)
        return self.model

    @property
    def decoder(self) -> Decoder:
        """The decode workers, held to the limits of the model and of the service."""
        if self.workers is None:
            raise ApiError(self.state)
        return self.workers

    @property
    def index(self) -> RetrievalIndex:
        """The retrieval index."""
        if self.images is None:
            raise ApiError(self.index_state)
        return self.images

    @property
    def is_ready(self) -> bool:
        """Whether everything that is configured answers."""
        return {self.state, self.index_state} <= _FINE

    def check(self) -> None:
        """Raise an `ApiError` where something that is configured does not answer."""
        for state in (self.state, self.index_state):
            if state not in _FINE:
                raise ApiError(state)


async def _current_state(request: Request) -> ServingState:
    serving: ModelManager = request.app.state.serving
    return serving.current


CurrentState = Annotated[ServingState, Depends(_current_state)]
"""What a route answers with: model, index and decoder."""


def fetch_model(settings: ServeSettings) -> ServeSettings:
    """Return settings whose model is a folder: a hub's is fetched.

    ConfigError where the hub does not send it, or the device asked for is not here: nothing runs on
    the CPU in silence.
    """
    check_device(settings.device)
    folder = fetch_weights(Path(settings.model), PACKAGE)
    return settings.model_copy(update={"model": str(folder)})


def check_device(name: str) -> None:
    """Refuse a device that this machine has not, or that torch does not know; ConfigError."""
    try:
        if name:
            torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            f"device is {name!r}, which this machine or this build of torch has not; leave the "
            "setting empty for a GPU where there is one, set cpu, or install torch for the device"
        ) from error


class ModelManager:
    """Loads model and index, and reloads both together when their folders are replaced.

    Attributes:
        current: what requests are answered with from here on.
    """

    def __init__(self, settings: ServeSettings, metrics: Metrics) -> None:
        self.current = ServingState(
            settings,
            metrics,
            WorkerSlots("decode", settings.decode_workers, metrics),
            MicroBatcher(settings.batch, metrics),
            WorkerSlots("search", _SEARCHES, metrics),
            WorkerSlots("draw", settings.decode_workers, metrics),
            index_state="loading" if settings.index else "no_index",
        )
        self._settings = settings
        self._metrics = metrics
        self._decoders: list[tuple[ImagesConfig, Decoder]] = []
        self._seen: _Mark = ()
        self._thread = start_threads(1, "load")
        self._denied: Path | None = None  # a file that could not be read, and may be one day

    async def load(self) -> None:
        """Load and warm up everything; a part that fails leaves its code behind."""
        self._seen = self._mark()
        self.current = await self._loaded()
        self._metrics.ready.set(int(self.current.is_ready))
        log(
            "ready" if self.current.is_ready else "not_ready",
            model=self.current.state,
            index=self.current.index_state,
        )

    async def load_and_watch(self) -> None:
        """Load, and reload what is renamed into the folders, until cancelled."""
        await self.load()
        while self._settings.watch_s:
            await asyncio.sleep(self._settings.watch_s)
            await self.reload_if_changed()

    async def reload_if_changed(self) -> None:
        """Reload model and index together, if they were replaced and both answer.

        New ones that do not fit each other, or cannot be read, change nothing: requests are
        answered with the old ones.
        """
        mark = self._mark()
        readable_now = self._denied is not None and os.access(
            self._denied, os.R_OK, effective_ids=True
        )
        if None in mark or (mark == self._seen and not readable_now):
            return  # None: in between two renames there is nothing
        self._seen = mark  # taken before anything is read: what changes since is seen again
        if not self.current.is_ready:
            await self.load()
            return
        new = await self._loaded()
        self._metrics.swaps.labels("served" if new.is_ready else "refused").inc()
        log("swapped" if new.is_ready else "swap_refused", model=new.state, index=new.index_state)
        if new.is_ready:
            self.current = new
            longest_s = self._settings.deadline_s + self._settings.decode_deadline_s
            loop = asyncio.get_running_loop()
            loop.call_later(longest_s, self._retire, self._decoders[:-1])

    def close(self) -> None:
        """End the decode workers and drop what waits."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        now = self.current
        for queue in (now.decode_slots, now.batcher, now.search_slots, now.draw_slots):
            queue.close()
        for _, decoder in self._decoders:
            decoder.close()

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _mark(self) -> _Mark:
        """Marks of the headers, which change when another model or index is renamed into place."""
        folders = [self._settings.model, *([self._settings.index] if self._settings.index else [])]
        return tuple(file_mark(Path(folder) / HEADER) for folder in folders)

    async def _loaded(self) -> ServingState:
        """Read model and index and let them answer once, while the old ones are served."""
        self._denied = None
        try:
            model = await self._in_thread(self._read_model)
            await self.current.batcher.run(partial(_try, model, self._settings.batch))
            decoder = await self._in_thread(partial(self._start_decoder, model.config.images))
            new = replace(
                self.current,
                state="ready",
                model=model,
                workers=decoder,
                index_state="loading" if self._settings.index else "no_index",
                images=None,
            )
        except Exception as error:  # noqa: BLE001 (readiness reports it, the process lives on)
            self._explain("model_unusable", error)
            return replace(
                self.current, state="model_unusable", model=None, workers=None, images=None
            )
        return await self._with_index(new)

    async def _with_index(self, new: ServingState) -> ServingState:
        if not self._settings.index:
            return new
        try:
            folder, digest = Path(self._settings.index), new.predictor.digest
            index = await self._in_thread(
                partial(RetrievalIndex.open, folder, digest, self._settings.retrieval)
            )
            vector = await self.current.batcher.run(
                lambda: new.predictor.embed_sentences(_PHRASE)[0]
            )
            for target in ("image", "text"):
                await self._in_thread(partial(index.search, Query(target, 1, vector=vector)))
        except Exception as error:  # noqa: BLE001 (readiness reports it, the process lives on)
            self._explain("index_unusable", error)
            stale = isinstance(error, ArtifactStale)
            state = "index_mismatch" if stale else "index_unusable"
            return replace(new, index_state=state, images=None)
        return replace(new, index_state="ready", images=index)

    def _read_model(self) -> Predictor:
        published = read_model_package(Path(self._settings.model))
        if self._settings.threads:
            torch.set_num_threads(self._settings.threads)
        default = "cuda" if torch.cuda.is_available() else "cpu"
        device = torch.device(self._settings.device or default)
        fitted = published.calibration
        changed = None if fitted is None else fitted.changed_in_bfloat16
        inference = InferenceConfig(
            engine=self._settings.engine, precision=self._settings.precision
        )
        predictor = build_predictor(published, device, inference)
        engine = predictor.engine
        log("engine", engine=engine.name, precision=engine.precision, changed_in_bfloat16=changed)
        return predictor

    def _explain(self, event: str, error: Exception) -> None:
        """Log why something cannot be served; our own messages name paths, settings and digests."""
        if isinstance(error, ArtifactUnreadable):
            self._denied = error.file
        if isinstance(error, MedclipError):
            log(event, logging.ERROR, error=type(error).__name__, reason=str(error))
        else:
            log_fault(event, error)

    def _start_decoder(self, images: ImagesConfig) -> Decoder:
        """Start decode workers, by as many images at once; those with equal limits are kept.

        A model may have been published by anybody: its limits hold below those of the service.
        """
        images = images.held_to(
            max_bytes=self._settings.max_body_mb * MEBIBYTE,
            max_megapixels=self._settings.max_megapixels,
            deadline_s=self._settings.decode_deadline_s,
            memory_mb=self._settings.decode_memory_mb,
        )
        if self._decoders and self._decoders[-1][0] == images:
            return self._decoders[-1][1]
        workers = self._settings.decode_workers
        decoder = Decoder(images, workers)
        self._decoders.append((images, decoder))
        with ThreadPoolExecutor(workers) as threads:
            list(threads.map(decoder.open, [_gradient()] * workers))
        return decoder

    def _retire(self, old: list[tuple[ImagesConfig, Decoder]]) -> None:
        """End decode workers, and return the memory of models before the current one.

        Called once nobody can be waiting for them.
        """
        for item in old:
            item[1].close()
            if item in self._decoders:  # an earlier swap may have ended them
                self._decoders.remove(item)
        self._thread.submit(give_memory_back)


def _try(model: Predictor, batch: int) -> None:
    """Ask a model everything before it is served.

    A whole batch comes first, so that the first clients find memory and kernels ready.
    CheckpointError where it gives something that is not a number.
    """
    size = model.config.images.size_px
    pixels = np.asarray(Image.linear_gradient("L").resize((size, size)))
    regions = model.embed_images(np.stack([pixels] * batch))
    image = SquareImage(pixels, size, size, constant=False, source="png", inverted=False)
    answers: list[Any] = [model.classify(image, explain=model.has_regions)]
    answers += [model.ground(image, _PHRASE)] if model.has_regions else []
    try:
        for answer in answers:  # JSON has no NaN: it is null there, which no answer allows
            type(answer).model_validate_json(answer.model_dump_json())
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise CheckpointError(
            f"the model answers a test with no number in {place}; train again"
        ) from error
    if not all(torch.isfinite(part).all() for part in (regions, model.embed_sentences(_PHRASE))):
        raise CheckpointError("the model gives vectors that are not finite; train again")


def _gradient() -> bytes:
    stream = io.BytesIO()
    Image.linear_gradient("L").save(stream, "PNG")
    return stream.getvalue()
