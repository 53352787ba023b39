import asyncio
import json
from pathlib import Path

import pytest

from api.app import create_app
from api.failures import Refusal
from api.journal import Figures
from api.serving import Serving
from api.settings import ServeSettings
from medclip_dcl.errors import ConfigError
from tests.synthetic.published import publish


def load(folder: Path, **settings: str) -> Serving:
    async def loaded() -> Serving:
        serving = Serving(ServeSettings(model=str(folder), **settings), Figures())
        with pytest.raises(Refusal) as refusal:
            serving.now.check()
        assert refusal.value.code == "loading"
        await serving.load()
        return serving

    return asyncio.run(loaded())


def test_a_damaged_model_is_never_served(tmp_path: Path) -> None:
    publish(tmp_path / "model")
    weights = tmp_path / "model/model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    serving = load(tmp_path / "model")
    for ask in (serving.now.check, lambda: serving.now.predictor, lambda: serving.now.decoder):
        with pytest.raises(Refusal) as refusal:
            ask()
        assert (refusal.value.code, refusal.value.status_code) == ("model_unusable", 503)
    serving.close()


def test_a_missing_index_leaves_the_model_and_is_not_ready(tmp_path: Path) -> None:
    publish(tmp_path / "model")
    serving = load(tmp_path / "model", index=str(tmp_path / "nothing"), device="cpu")
    assert serving.now.predictor.digest == serving.now.published.digest
    with pytest.raises(Refusal) as refusal:
        serving.now.check()
    assert refusal.value.code == "index_unusable"
    serving.close()


def test_the_factory_reads_the_file_that_the_variable_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "serve.json"
    file.write_text(json.dumps({"model": "m", "allow_anonymous": True, "queue": 3}))
    monkeypatch.setenv("MEDCLIP_CONFIG", str(file))
    monkeypatch.setenv("MEDCLIP_MAX_HITS", "7")
    settings = create_app().state.serving.now.settings
    assert (settings.queue, settings.max_hits) == (3, 7)
    monkeypatch.setenv("MEDCLIP_MAX_HIT", "7")
    with pytest.raises(ConfigError, match="MEDCLIP_MAX_HIT"):
        create_app()
