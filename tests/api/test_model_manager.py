import asyncio
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from api.app import create_app
from api.errors import ApiError
from api.logging import Metrics
from api.model_manager import ModelManager, _gradient
from api.settings import ServeSettings
from medclip_dcl.core.errors import ConfigError
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.inference.model_package import BANK_FILE, rewrite_package
from pipelines.config import Config
from tests.support.published import publish, random_range
from tests.support.service import store
from tests.support.tiny_models import random_images, tiny_model_config
from tests.support.users import enterable_folder, plain_user


def state_of(serving: ModelManager) -> str:
    """Whether it is ready, or why not."""
    try:
        serving.current.check()
    except ApiError as error:
        return error.code
    return "ready"


def load(folder: Path, **settings: str) -> ModelManager:
    async def loaded() -> ModelManager:
        plain = {"model": str(folder), "engine": "torch", "decode_workers": 1}
        serving = ModelManager(ServeSettings(**plain | settings), Metrics())
        assert state_of(serving) == "loading"
        await serving.load()
        return serving

    return asyncio.run(loaded())


def test_a_model_that_may_not_be_read_is_served_once_it_may() -> None:
    with enterable_folder() as folder:
        publish(folder / "model")
        (folder / "model/model.safetensors").chmod(0)
        with plain_user():
            serving = load(folder / "model", device="cpu")
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
        plain = {"model": str(tmp_path / "model"), "device": "cpu", "decode_workers": 1}
        serving = ModelManager(ServeSettings(**plain, engine="torch"), Metrics())
        await serving.load()
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
    serving = load(tmp_path / "model", device="cpu")
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
    known = random_range()
    short = known.model_copy(update={"mean": (0.0,), "precision": ((1.0,),)})
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
    serving = load(now / "model", device="cpu")
    assert state_of(serving) == "model_unusable"
    put(good, now, "model")
    asyncio.run(serving.reload_if_changed())
    assert state_of(serving) == "ready"
    put(again, now, "model")
    asyncio.run(serving.reload_if_changed())
    assert (state_of(serving), serving.current.predictor.digest) == ("ready", before)
    serving.close()


def test_a_service_that_waits_for_its_index_is_ready_once_it_is_there(tmp_path: Path) -> None:
    folder, other = store(tmp_path / "now"), store(tmp_path / "other", seed=1)
    (folder / "index").rename(tmp_path / "index")
    (other / "index").rename(folder / "index")
    serving = load(folder / "model", index=str(folder / "index"), device="cpu")
    assert state_of(serving) == "index_mismatch"
    put(tmp_path, folder, "index")
    asyncio.run(serving.reload_if_changed())
    assert state_of(serving) == "ready"
    serving.close()


def test_a_missing_index_leaves_the_model_and_is_not_ready(tmp_path: Path) -> None:
    model = publish(tmp_path / "model")
    serving = load(model.path, index=str(tmp_path / "nothing"), device="cpu")
    assert serving.current.predictor.digest == model.digest
    assert state_of(serving) == "index_unusable"
    serving.close()


def test_the_factory_reads_the_file_that_the_variable_names(tmp_path, monkeypatch):
    file = tmp_path / "serve.json"
    file.write_text(json.dumps({"model": "m", "allow_anonymous": True, "queue": 3}))
    monkeypatch.setenv("MEDCLIP_CONFIG", str(file))
    monkeypatch.setenv("MEDCLIP_BATCH", "7")
    settings = create_app().state.serving.current.settings
    assert (settings.queue, settings.batch) == (3, 7)
    monkeypatch.setenv("MEDCLIP_MAX_HITS", "7")
    with pytest.raises(ConfigError, match="MEDCLIP_MAX_HITS"):
        create_app()
