"""Another model and index under load, and a service that is asked to stop under load."""

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from medclip_dcl.core.artifact import read_artifact_header
from tests.api.test_model_manager import put
from tests.support.service import PATIENCE_S, Service, png, running, store

CLIENTS = 4
PARTS = ("model", "index")


def digests(folder: Path) -> tuple[str, str]:
    model, index = (read_artifact_header(folder / part).digest for part in PARTS)
    return model, index


class Crowd:
    """Clients that retrieve by an image and fetch its thumbnail, without a pause."""

    def __init__(self, service: Service) -> None:
        self.pairs: list[tuple[str, str]] = []
        self.failures: list[str] = []
        self._service = service
        self._stop = threading.Event()

    def ask_on(self) -> None:
        image = {"image": ("image", png())}
        with self._service.client() as client:
            while not self._stop.is_set():
                answer = client.post("/retrieve", files=image, data={"target": "image", "k": "1"})
                if answer.status_code != 200:
                    self.failures.append(answer.text)
                    continue
                reply = answer.json()
                self.pairs.append((reply["model"], reply["index"]))
                picture = client.get(reply["hits"][0]["thumbnail"])
                if picture.status_code != 200:
                    self.failures.append(picture.text)

    def wait_for(self, answers: int) -> None:
        """Wait for so many further answers."""
        end = len(self.pairs) + answers
        while len(self.pairs) < end:
            assert not self.failures
            time.sleep(0.02)

    @contextmanager
    def batcher(self) -> Iterator[None]:
        threads = [threading.Thread(target=self.ask_on) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()


def wait_for(service: Service, event: str, count: int = 1) -> None:
    end = time.monotonic() + PATIENCE_S
    while [line["event"] for line in service.lines()].count(event) < count:
        assert time.monotonic() < end, event
        time.sleep(0.05)


def damaged(model: Path, folder: Path) -> Path:
    """A copy of a model with one bit turned round."""
    shutil.copytree(model, folder / "model")
    weights = folder / "model/model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    return folder


def test_model_and_index_are_exchanged_as_a_pair_without_a_failed_request(tmp_path: Path) -> None:
    folder, new = store(tmp_path / "now"), store(tmp_path / "new", seed=1)
    before, after = digests(folder), digests(new)
    assert not set(before) & set(after)
    with running(folder, watch_s=0.1) as service:
        crowd = Crowd(service)
        with crowd.batcher():
            put(damaged(new / "model", tmp_path / "damaged"), folder, "model")
            wait_for(service, "swap_refused")
            put(new, folder, "model")
            wait_for(service, "swap_refused", 2)  # the index is still that of the old model
            crowd.wait_for(CLIENTS)
            assert set(crowd.pairs) == {before}
            put(new, folder, "index")
            wait_for(service, "swapped")
            crowd.wait_for(4 * CLIENTS)
        assert crowd.failures == []
        assert set(crowd.pairs) == {before, after}
        assert crowd.pairs[-1] == after
        with service.client() as client:
            assert client.get("/model").json()["digest"] == after[0]
            figures = client.get("/metrics").text
    assert 'medclip_swaps_total{outcome="served"} 1.0' in figures
    assert 'medclip_swaps_total{outcome="refused"} 2.0' in figures


def test_who_is_inside_when_the_service_stops_is_answered_and_nobody_else(folder: Path) -> None:
    with running(folder) as service:
        reported: list[int] = []

        def ask() -> None:
            with service.client() as client:
                image = {"image": ("image", png((900, 900)))}
                reported.append(client.post("/classify", files=image).status_code)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        inside = 0.0
        while inside < len(threads):
            figures = httpx.get(f"{service.url}metrics").text
            (line,) = (row for row in figures.splitlines() if row.startswith("medclip_inside "))
            inside = float(line.split()[1]) + len(reported)
        service.process.terminate()
        for thread in threads:
            thread.join()
        assert service.wait() == 0
        assert reported == [200] * len(threads)
        host, port = service.url.removeprefix("http://").strip("/").split(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))
