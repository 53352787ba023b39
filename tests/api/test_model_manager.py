"""What is loaded, exchanged under load, refused and stopped."""

import asyncio
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import save

from api.errors import ApiError
from api.logging import Metrics
from api.model_manager import ModelManager, _gradient, fetch_model
from api.settings import ServeSettings
from medclip_dcl.core.artifact import read_artifact_header
from medclip_dcl.core.errors import ConfigError
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.inference.model_package import BANK_FILE, rewrite_package
from pipelines.config import Config
from tests.support.published import publish, random_range
from tests.support.service import Service, png, running, store
from tests.support.tiny_models import random_images, tiny_model_config
from tests.support.users import enterable_folder, plain_user

CLIENTS = 4


def state_of(serving: ModelManager) -> str:
    """Whether it is ready, or why not."""
    try:
        serving.current.check()
    except ApiError as error:
        return error.code
    return "ready"


async def loaded(folder: Path, **settings: str) -> ModelManager:
    plain = {"model": str(folder), "engine": "torch", "device": "cpu", "decode_workers": 1}
    serving = ModelManager(ServeSettings(**plain | settings), Metrics())
    assert state_of(serving) == "loading"
    await serving.load()
    return serving


def load(folder: Path, **settings: str) -> ModelManager:
    return asyncio.run(loaded(folder, **settings))


def test_a_model_that_may_not_be_read_is_served_once_it_may() -> None:
    with enterable_folder() as folder:
        publish(folder / "model")
        (folder / "model/model.safetensors").chmod(0)
        with plain_user():
            serving = load(folder / "model")
            asyncio.run(serving.reload_if_changed())
        assert state_of(serving) == "model_unusable"
        (folder / "model/model.safetensors").chmod(0o644)  # no inode and no header changes
        asyncio.run(serving.reload_if_changed())
        assert state_of(serving) == "ready"
        serving.close()


def publish_limited(folder: Path, max_bytes: int, **limits: float) -> None:
    images = {"size_px": 64, "max_bytes": max_bytes, **limits}
    tree = {"work": "unused", "model": tiny_model_config().model_dump(), "images": images}
    publish(folder, seed=max_bytes % 2**31, config=Config.model_validate(tree))


def test_a_refused_swap_after_one_that_was_served_ends_no_worker_in_use(tmp_path: Path) -> None:
    async def swap_twice() -> None:
        serving = await loaded(tmp_path / "model")
        later: list[Callable[[], None]] = []
        loop = asyncio.get_running_loop()
        loop.call_later = lambda _s, call, *given: later.append(partial(call, *given))
        publish_limited(tmp_path / "model", max_bytes=2_000_000)
        await serving.reload_if_changed()
        served = serving.current.decoder
        assert served is serving._start_decoder(served._settings)
        serving._start_decoder(ImagesConfig(max_bytes=3_000_000))  # then no index fits the model
        for retire in later:
            retire()
        assert served.open(_gradient()).pixels.shape == (256, 256)
        assert [decoder for _, decoder in serving._decoders].count(served) == 1
        assert len(serving._decoders) == 2
        serving.close()

    publish_limited(tmp_path / "model", max_bytes=1_000_000)
    asyncio.run(swap_twice())


def test_a_package_lowers_the_limits_of_decoding_and_never_raises_them(tmp_path: Path) -> None:
    publish_limited(tmp_path / "model", max_bytes=2**60, deadline_s=1e9, memory_mb=100)
    serving = load(tmp_path / "model")
    held = serving.current.decoder._settings
    assert (held.max_bytes, held.deadline_s, held.memory_mb) == (64 * 2**20, 8, 100)
    serving.close()


def put(new: Path, folder: Path, part: str) -> None:
    """Rename a new artifact into the place of the old one, as the jobs do."""
    (folder / part).rename(folder / f"old_{part}")
    (new / part).rename(folder / part)
    shutil.rmtree(folder / f"old_{part}")


def of_other_features(folder: Path) -> None:
    """Publish a model whose range is of other features than images have."""
    fitted = random_range()
    short = fitted.model_copy(update={"mean": (0.0,), "precision": ((1.0,),)})
    publish(folder, seed=2, known=short)


def with_a_bank_of_another_width(folder: Path) -> None:
    """Publish a model whose bank has vectors of another length than its own."""
    model = publish(folder, seed=2, bank=random_images(6, 64))

    def write(draft: Path) -> None:
        (draft / BANK_FILE).write_bytes(save({"regions": torch.ones(6, 4, 4, 5).half()}))

    rewrite_package(model, folder, [BANK_FILE], write)


@pytest.mark.parametrize("spoil", [of_other_features, with_a_bank_of_another_width])
def test_a_model_that_cannot_answer_is_never_ready_and_replaces_none_that_can(tmp_path, spoil):
    now, good, again = (tmp_path / name for name in ("now", "good", "again"))
    before = publish(good / "model").digest
    for folder in (now, again):
        spoil(folder / "model")
    serving = load(now / "model")
    assert state_of(serving) == "model_unusable"
    put(good, now, "model")
    asyncio.run(serving.reload_if_changed())
    assert state_of(serving) == "ready"
    put(again, now, "model")
    asyncio.run(serving.reload_if_changed())
    assert (state_of(serving), serving.current.predictor.digest) == ("ready", before)
    serving.close()


@pytest.mark.parametrize("state", ["index_unusable", "index_mismatch"])
def test_a_service_that_waits_for_its_index_is_ready_once_it_is_there(tmp_path, caplog, state):
    folder = store(tmp_path / "now")
    (folder / "index").rename(tmp_path / "index")
    if state == "index_mismatch":
        (store(tmp_path / "other", seed=1) / "index").rename(folder / "index")
    serving = load(folder / "model", index=str(folder / "index"))
    assert state_of(serving) == state
    assert "index_unusable" in [record.msg for record in caplog.records]
    assert serving.current.predictor.digest == digests(folder, "model")[0]  # served meanwhile
    with pytest.raises(ApiError, match=state):
        _ = serving.current.index
    shutil.rmtree(folder / "index", ignore_errors=True)
    (tmp_path / "index").rename(folder / "index")
    asyncio.run(serving.reload_if_changed())
    assert state_of(serving) == "ready"
    serving.close()


def test_a_device_that_is_not_here_is_refused_before_anything_starts() -> None:
    for device in ("nowhere", "cuda:99"):
        with pytest.raises(ConfigError, match=rf"device is '{device}', which this machine"):
            fetch_model(ServeSettings(model="unused", device=device))
    assert fetch_model(ServeSettings(model="unused", device="cpu")).device == "cpu"


@contextmanager
def crowd(service: Service) -> Iterator[list[tuple[str, str]]]:
    """Clients that retrieve by an image and fetch its thumbnail, without a pause.

    Yields the digests of model and index of their answers; a request that fails is raised at the
    end.
    """
    pairs: list[tuple[str, str]] = []
    is_over = threading.Event()

    def ask_on() -> None:
        with service.client() as client:
            while not is_over.is_set():
                fields = {"target": "image", "k": "1"}
                answer = client.post("/retrieve", files={"image": ("a", png())}, data=fields)
                reply = answer.raise_for_status().json()
                pairs.append((reply["model"], reply["index"]))
                client.get(reply["hits"][0]["thumbnail"]).raise_for_status()

    with ThreadPoolExecutor(CLIENTS) as threads:
        asking = [threads.submit(ask_on) for _ in range(CLIENTS)]
        try:
            yield pairs
        finally:
            is_over.set()
    for client in asking:
        client.result()


def digests(folder: Path, *parts: str) -> tuple[str, ...]:
    return tuple(read_artifact_header(folder / part).digest for part in parts)


def test_model_and_index_are_exchanged_as_a_pair_without_a_failed_request(tmp_path: Path) -> None:
    folder, new = store(tmp_path / "now"), store(tmp_path / "new", seed=1)
    before, after = (digests(place, "model", "index") for place in (folder, new))
    assert not set(before) & set(after)
    shutil.copytree(new / "model", tmp_path / "damaged/model")
    weights = tmp_path / "damaged/model/model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with running(folder, watch_s=0.1) as service:

        def is_logged(event: str, times: int) -> bool:
            return [line["event"] for line in service.lines()].count(event) >= times

        with crowd(service) as pairs:
            put(tmp_path / "damaged", folder, "model")
            service.until(lambda: is_logged("swap_refused", 1))
            put(new, folder, "model")  # the index is still that of the old one
            service.until(lambda: is_logged("swap_refused", 2))
            answered = len(pairs)
            service.until(lambda: len(pairs) >= answered + CLIENTS)
            assert set(pairs) == {before}
            put(new, folder, "index")
            service.until(lambda: is_logged("swapped", 1))
            answered = len(pairs)
            service.until(lambda: len(pairs) >= answered + 4 * CLIENTS)
        assert set(pairs) == {before, after}
        assert pairs[-1] == after
        with service.client() as client:
            assert client.get("/model").json()["digest"] == after[0]
            figures = client.get("/metrics").text
    assert 'medclip_swaps_total{outcome="served"} 1.0' in figures
    assert 'medclip_swaps_total{outcome="refused"} 2.0' in figures


def test_who_is_inside_when_the_service_stops_is_answered_and_nobody_else(published: Path) -> None:
    with running(published) as service, ThreadPoolExecutor(8) as threads:

        def ask() -> int:
            with service.client() as client:
                image = {"image": ("image", png((900, 900)))}
                return client.post("/classify", files=image).status_code

        asked = [threads.submit(ask) for _ in range(8)]

        def are_inside() -> bool:
            figures = httpx.get(f"{service.url}metrics").text
            (inside,) = re.findall(r"^medclip_inside (\S+)$", figures, re.MULTILINE)
            return float(inside) + sum(item.done() for item in asked) >= len(asked)

        service.until(are_inside)
        service.process.terminate()
        assert [item.result() for item in asked] == [200] * len(asked)
        assert service.wait() == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(service.address)
