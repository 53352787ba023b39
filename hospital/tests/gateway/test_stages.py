"""Images are answered, built and sent without a PACS: what fails, and how long it waits."""

import hashlib
import threading
import time
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from hospital.tests.support.archive import endless, nested, stub_archive
from hospital.tests.support.orthanc import dataset, gateway_settings, radiograph, send, wait_until
from medclip_dcl.core.errors import ServiceError
from medclip_hospital.gateway import destinations, launcher, stages
from medclip_hospital.gateway.journal import Journal
from medclip_hospital.gateway.monitoring import Monitor
from medclip_hospital.gateway.spool import Spool
from tests.support.stub_service import stub_service
from tests.support.tls import HAS_OPENSSL, make_certificates


class Pacs:
    """A destination in memory."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.down = False
        self.fault: Exception | None = None
        self.refuses: set[int] = set()
        self.calls = 0

    def send(self, objects):
        self.calls += 1
        if self.fault is not None:
            raise self.fault
        if self.down:
            raise ServiceError("unreachable", "it is down")
        taken = [uid for number, uid in enumerate(objects) if number not in self.refuses]
        for uid in taken:
            self.stored.setdefault(uid, objects[uid].read_bytes())
        return taken


@contextmanager
def running(folder: Path, service, pacs: Pacs | None, **given):
    settings = gateway_settings(folder, service.url, **given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "FIRST_WAIT_S", 0.05)
        with launcher.started(settings, pacs) as gateway:
            yield gateway


@pytest.fixture(scope="module")
def pacs():
    return Pacs()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory, service, pacs):
    with running(tmp_path_factory.mktemp("gateway"), service, pacs) as gateway:
        yield gateway


def state(gateway, position: int = 0):
    """State and code of the image that came last, or earlier."""
    rows = gateway.journal._rows("select state, code from images order by received_at desc")
    return rows[position]


def test_a_pacs_that_is_down_or_takes_a_part_gets_the_rest_later(gateway, pacs) -> None:
    health = f"http://127.0.0.1:{gateway.metrics_port}/health"
    pacs.down = True
    assert send(gateway.port, [radiograph()]) == [0]
    wait_until(lambda: pacs.calls >= 2 and state(gateway)[1])
    assert state(gateway) == ("built", "destination_unreachable")
    assert httpx.get(health).json() == {"status": "destination"}
    pacs.down, pacs.refuses = False, {1}
    wait_until(lambda: len(pacs.stored) == 2)
    assert state(gateway)[0] == "built"
    pacs.refuses = set()
    wait_until(lambda: state(gateway) == ("done", ""))
    assert len(pacs.stored) == 3
    assert httpx.get(health).json() == {"status": "ok"}
    metrics = httpx.get(health.replace("health", "metrics")).text
    assert 'medclip_gateway_images{state="done"} 1.0' in metrics


def test_an_image_that_is_finished_while_another_thread_looks_is_not_taken_twice(
    tmp_path, monkeypatch
) -> None:
    settings = gateway_settings(tmp_path, "http://127.0.0.1:9")
    with closing(Spool(settings.spool, 2000)) as spool:
        journal = Journal(settings.spool / "journal.sqlite3")
        journal.add("d", "1.2", "A")
        workers = stages.Workers(settings, spool, journal, Monitor(journal, spool), None, Pacs())
        claimed, seen = threading.Event(), threading.Event()

        def finish(_entry) -> None:
            claimed.set()
            seen.wait()
            workers._stopped = True

        monkeypatch.setattr(workers, "_go_on", finish)
        first = threading.Thread(target=workers._run)
        first.start()
        claimed.wait()
        waiting = journal.waiting

        def looked(now: float, most: int):
            found = waiting(now, most)
            seen.set()
            first.join(0.1)
            return found

        monkeypatch.setattr(journal, "waiting", looked)
        assert workers._claim() is None
        first.join()
        journal.close()


def test_a_destination_that_fails_as_nothing_foresaw_is_shown(tmp_path, service) -> None:
    pacs = Pacs()
    pacs.fault = ValueError("of a library")
    with running(tmp_path, service, pacs) as gateway:
        health = f"http://127.0.0.1:{gateway.metrics_port}/health"
        assert send(gateway.port, [radiograph()]) == [0]
        wait_until(lambda: state(gateway) == ("built", "fault"))
        assert httpx.get(health).json() == {"status": "destination"}
        pacs.fault = None
        wait_until(lambda: state(gateway) == ("done", ""))
        assert httpx.get(health).json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (nested, "destination_no_answer"),
        (partial(endless, part=b" ", pause_s=0.01), "destination_unreachable"),
    ],
    ids=["nested", "dripping"],
)
def test_a_pacs_that_answers_oddly_is_shown_and_holds_up_nothing(
    tmp_path, service, monkeypatch, answer, code
) -> None:
    monkeypatch.setattr(destinations, "TIMEOUT_S", 0.2)
    with stub_archive() as archive:
        archive.odd = lambda request: answer(request) or True
        given = {"workers": 1, "destination": {"kind": "dicomweb", "url": archive.url}}
        with running(tmp_path, service, None, **given) as gateway:
            health = f"http://127.0.0.1:{gateway.metrics_port}/health"
            assert send(gateway.port, [radiograph(), radiograph(1)]) == [0, 0]
            wait_until(lambda: gateway.journal.counts()["built"] == 2)
            wait_until(lambda: state(gateway) == ("built", code))
            assert httpx.get(health).json() == {"status": "destination"}
            archive.odd = lambda _: False
            wait_until(lambda: gateway.journal.counts()["done"] == 2)


def test_an_answer_with_nan_is_not_taken(gateway, service, monkeypatch) -> None:
    monkeypatch.setitem(service.answer["findings"][0], "score", float("nan"))
    assert send(gateway.port, [radiograph(23)]) == [0]
    wait_until(lambda: state(gateway)[1])
    assert state(gateway) == ("received", "service_no_answer")
    service.answer["findings"][0]["score"] = 0.9
    wait_until(lambda: state(gateway) == ("done", ""))


@pytest.mark.skipif(not HAS_OPENSSL, reason="not installed: openssl")
def test_service_and_pacs_with_a_certificate_of_the_hospital_s_authority(tmp_path) -> None:
    certificates = make_certificates(tmp_path / "tls")
    context = certificates.server_context()
    with stub_service(tls=context) as service, stub_archive(context) as archive:
        given = {"destination": {"kind": "dicomweb", "url": archive.url}}
        with running(tmp_path, service, None, **given) as gateway:
            assert send(gateway.port, [radiograph()]) == [0]
            wait_until(lambda: state(gateway) == ("received", "service_certificate"))
        given["ca"] = certificates.ca
        with running(tmp_path, service, None, **given) as gateway:
            wait_until(lambda: state(gateway) == ("done", ""))
        assert archive.asked == ["POST /studies"]


def test_a_known_image_is_acknowledged_without_work(gateway, pacs) -> None:
    image = radiograph(1)
    assert send(gateway.port, [image]) == [0]
    wait_until(lambda: state(gateway)[0] == "done")
    stored, calls, images = len(pacs.stored), pacs.calls, sum(gateway.journal.counts().values())
    assert send(gateway.port, [image, image]) == [0, 0]
    time.sleep(0.05)
    assert (len(pacs.stored), pacs.calls) == (stored, calls)
    assert sum(gateway.journal.counts().values()) == images


@pytest.mark.parametrize(
    ("tags", "code"),
    [
        ({"ViewPosition": "LL"}, "view"),
        ({"BodyPartExamined": "HAND"}, "body_part"),
        ({"PresentationIntentType": "FOR PROCESSING"}, "for_processing"),
        ({"StudyInstanceUID": ""}, "no_identity"),
        ({"Rows": 41}, "truncated"),
    ],
)
def test_what_is_not_for_us_is_refused_and_never_asked(gateway, service, pacs, tags, code) -> None:
    before = len(service.bodies), pacs.calls
    assert send(gateway.port, [radiograph(2, **tags)]) == [0]
    wait_until(lambda: state(gateway)[1] == code)
    assert state(gateway)[0] == "refused"
    if code != "truncated":  # the header does not show that
        assert (len(service.bodies), pacs.calls) == before


def test_an_image_out_of_range_is_refused_once_the_pacs_knows(gateway, service, pacs, monkeypatch):
    monkeypatch.setitem(service.answer["image"], "flags", ["out_of_range"])
    monkeypatch.setattr(pacs, "down", True)
    before = set(pacs.stored)
    assert send(gateway.port, [radiograph(30)]) == [0]
    wait_until(lambda: state(gateway) == ("built", "destination_unreachable"))
    pacs.down = False
    wait_until(lambda: state(gateway) == ("refused", "out_of_range"))
    told = {
        dataset(data).SeriesDescription for uid, data in pacs.stored.items() if uid not in before
    }
    assert told == {
        "NOT ANALYSED: medclip-dcl findings (research)",
        "NOT ANALYSED: medclip-dcl overlay (research)",
    }
    assert gateway.journal.refusals()["out_of_range"] == 1
    metrics = httpx.get(f"http://127.0.0.1:{gateway.metrics_port}/metrics").text
    assert 'medclip_gateway_refusals{code="out_of_range"} 1.0' in metrics


@pytest.mark.parametrize("out_of_range", ["refuse", "answer"])
def test_where_negatives_get_nothing_an_image_out_of_range_is_no_negative(
    tmp_path, service, monkeypatch, out_of_range
) -> None:
    monkeypatch.setitem(service.answer["image"], "flags", ["out_of_range"])
    pacs, given = Pacs(), {"only_positive": True, "out_of_range": out_of_range}
    with running(tmp_path, service, pacs, **given) as gateway:
        assert send(gateway.port, [radiograph()]) == [0]
        ends = {"refuse": ("refused", "out_of_range"), "answer": ("done", "")}
        wait_until(lambda: state(gateway) == ends[out_of_range])
    said = {dataset(data).SeriesDescription.partition(":")[0] for data in pacs.stored.values()}
    assert said == {"NOT ANALYSED" if out_of_range == "refuse" else "OUT OF RANGE"}


def test_a_service_that_is_too_busy_for_an_image_is_asked_again(gateway, service, monkeypatch):
    monkeypatch.setattr(service, "status", 503)
    monkeypatch.setattr(service, "code", "deadline")  # for which images are refused, too
    assert send(gateway.port, [radiograph(20)]) == [0]
    wait_until(lambda: state(gateway)[1])
    assert state(gateway) == ("received", "service_deadline")
    service.status = 200
    wait_until(lambda: state(gateway) == ("done", ""))


def test_a_rotated_key_is_read_without_a_restart(tmp_path, service, monkeypatch) -> None:
    file = tmp_path / "key"
    file.touch(0o600)
    file.write_text("a" * 32)
    with running(tmp_path, service, Pacs(), service_key_file=str(file)) as gateway:
        monkeypatch.setattr(service, "key", "b" * 32)
        assert send(gateway.port, [radiograph(22)]) == [0]
        wait_until(lambda: state(gateway)[1])
        assert state(gateway) == ("received", "service_unauthorized")
        file.write_text("")  # an editor has opened it
        gateway.journal.retry()
        file.write_text("b" * 32)
        wait_until(lambda: state(gateway) == ("done", ""))


def test_no_identity_reaches_the_service(gateway, service, pacs) -> None:
    del service.bodies[:]
    send(gateway.port, [radiograph(3, PatientComments="PHISENTINEL")])
    wait_until(lambda: state(gateway)[0] == "done")
    (body,) = service.bodies
    assert b"MONOCHROME2" in body
    for word in (b"ID0003", b"Doe^Jane", b"PHISENTINEL", b"3680043.10.1", b"19500102"):
        assert word not in body


def test_commands_see_what_is_stuck_and_take_it_up_and_files_go_by_age(tmp_path, service, capsys):
    service.status, pacs = 503, Pacs()
    given = {"give_up_hours": 1e-9, "keep_hours": 0, "remember_days": 1e-9, "objects": ("sr",)}
    with running(tmp_path, service, pacs, **given) as gateway:
        try:
            send(gateway.port, [radiograph(), radiograph(1)])
            wait_until(lambda: gateway.journal.counts()["stuck"] == 2)
        finally:
            service.status = 200
        config = tmp_path / "gateway.yaml"
        config.write_text(gateway.settings.model_dump_json())
        capsys.readouterr()
        assert launcher.main(["status", "--config", str(config)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 3
        assert "stuck service_loading after 2 attempts" in lines[1]
        digest = lines[1].split()[0]
        assert launcher.main(["retry", digest, "--config", str(config)]) == 0
        wait_until(lambda: gateway.journal.counts()["done"] == 1)
        assert len(pacs.stored) == 1
        assert launcher.main(["forget", "*", "--config", str(config)]) == 2
        other = lines[2].split()[0]
        assert launcher.main(["forget", other, "--config", str(config)]) == 0
        assert sum(gateway.journal.counts().values()) == 1
        gateway.tidy()
        assert sum(gateway.journal.counts().values()) == 0
    left = [path for path in (tmp_path / "spool").rglob("*") if path.is_file()]
    assert {path.name.partition("-")[0] for path in left} <= {"lock", "journal.sqlite3"}


def test_an_image_in_the_spool_that_the_journal_does_not_know_is_taken_up(tmp_path, service):
    pacs, image = Pacs(), radiograph(4)
    (tmp_path / "spool/images").mkdir(parents=True, mode=0o700)
    (tmp_path / "spool").chmod(0o700)
    digest = hashlib.sha256(image).hexdigest()
    (tmp_path / f"spool/images/{digest}.dcm").write_bytes(image)
    with running(tmp_path, service, pacs, only_positive=True) as gateway:
        wait_until(lambda: gateway.journal.state(digest) == "done")
    assert len(pacs.stored) == 3  # the first finding of the stub's answer is positive


def test_an_image_that_takes_too_long_to_decode_is_refused(gateway, service, monkeypatch) -> None:
    monkeypatch.setattr(service, "status", 422)
    monkeypatch.setattr(service, "code", "deadline")
    assert send(gateway.port, [radiograph(21)]) == [0]
    wait_until(lambda: state(gateway) == ("refused", "deadline"))
