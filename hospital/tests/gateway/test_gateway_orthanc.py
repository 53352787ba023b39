"""The round trip with a real PACS: DICOMweb and DIMSE out, TLS, strangers, cut, too large."""

import datetime as dt
import socket
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pynetdicom import AE, evt

from hospital.tests.support import orthanc
from hospital.tests.support.orthanc import (
    Orthanc,
    gateway_settings,
    radiograph,
    send,
    tls_files,
    wait_until,
)
from medclip_dcl.data.grayscale import square
from medclip_dcl.data.images import open_image
from medclip_dcl.inference.input_range import fit_input_range
from medclip_dcl.synthetic.patients import draw_patient
from medclip_hospital.gateway import launcher
from medclip_hospital.gateway.listener import client_context
from tests.support import unlike
from tests.support.published import publish
from tests.support.service import running as running_service
from tests.support.tls import HAS_OPENSSL

pytestmark = pytest.mark.skipif(
    bool(orthanc.missing()), reason=f"not installed: {orthanc.missing()}"
)
CT = "1.2.840.10008.5.1.4.1.1.2"
ENDS = ("done", "refused", "stuck")
REPORT, STATE, CAPTURE = (f"1.2.840.10008.5.1.4.1.1.{kind}" for kind in ("88.34", "11.1", "7"))


@pytest.fixture(scope="module")
def pacs(tmp_path_factory):
    with orthanc.running(tmp_path_factory.mktemp("pacs") / "orthanc") as pacs:
        yield pacs


@pytest.fixture(scope="module")
def gateway(tmp_path_factory, service, pacs: Orthanc):
    folder = tmp_path_factory.mktemp("gateway")
    callers = {"MODALITY": ["127.0.0.0/8"], "ELSEWHERE": ["10.0.0.0/8"]}
    given = {"callers": callers, "max_bytes_mb": 4}
    with launcher.started(
        gateway_settings(folder, service.url, {"kind": "dicomweb", "url": pacs.web}, **given)
    ) as gateway:
        yield gateway


def deliver(gateway, pacs: Orthanc, image: bytes) -> list:
    """Send an image and give the objects that are new in the PACS once it is done."""
    before = set(pacs.instances())
    done = gateway.journal.counts()["done"]
    assert send(gateway.port, [image]) == [0]
    wait_until(lambda: gateway.journal.counts()["done"] > done)
    return pacs.datasets(set(pacs.instances()) - before)


def test_answers_come_back_under_the_patient_and_corrected_data_give_new_ones(gateway, pacs):
    made = deliver(gateway, pacs, radiograph(1))
    assert sorted(item.SOPClassUID for item in made) == sorted([REPORT, STATE, CAPTURE])
    assert {(item.PatientID, str(item.PatientName)) for item in made} == {("ID0001", "Doe^Jane1")}
    assert {item.StudyInstanceUID for item in made} == {"1.2.826.0.1.3680043.10.1.1.1"}
    for item in made:  # as they were made, element by element
        (path,) = gateway.spool.folder.glob(f"objects/*/{item.SOPInstanceUID}.dcm")
        assert path.read_bytes() == pacs.file(item.SOPInstanceUID)
    assert send(gateway.port, [radiograph(1)]) == [0]  # a duplicate
    corrected = deliver(gateway, pacs, radiograph(1, PatientName="Roe^Jane"))
    assert {str(item.PatientName) for item in corrected} == {"Roe^Jane"}
    assert len(corrected) == 3


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"calling": "STRANGER"}, "rejected"),
        ({"called": "OTHER"}, "rejected"),
        ({"calling": "ELSEWHERE"}, "rejected"),  # known, but not from this address
        ({"image": radiograph(SOPClassUID=CT)}, "aborted"),  # no context is accepted
        ({"image": radiograph(SOPClassUID=REPORT)}, "aborted"),  # our own cannot come back
    ],
)
def test_strangers_and_other_objects_are_turned_away(gateway, given, reason) -> None:
    image = given.pop("image", radiograph(2))
    before = gateway.journal.counts()
    with pytest.raises(ConnectionRefusedError, match=reason):
        send(gateway.port, [image], **given)
    assert gateway.journal.counts() == before


def test_too_large_is_refused_and_the_association_goes_on(gateway) -> None:
    before = set(gateway.spool.digests())
    large = radiograph(3, rows=1500, columns=1500)
    assert send(gateway.port, [large, radiograph(4)]) == [0xA700, 0]
    assert len(set(gateway.spool.digests()) - before) == 1
    assert list(gateway.spool.incoming.iterdir()) == []


def test_an_association_that_is_cut_leaves_nothing_and_the_next_delivery_is_whole(gateway, pacs):
    image = radiograph(5, rows=1000, columns=1500, ViewPosition="LL")  # refused once it is here
    seen = []

    def cut(event: evt.Event) -> None:
        seen.append(event)
        if len(seen) == 4:  # the association, the command, and two of three megabytes
            wait_until(lambda: list(gateway.spool.incoming.iterdir()))
            event.assoc.dul.socket.socket.shutdown(socket.SHUT_RDWR)

    before = set(gateway.spool.digests())
    entity = AE(ae_title="MODALITY")
    entity.add_requested_context("1.2.840.10008.5.1.4.1.1.1", "1.2.840.10008.1.2.1")
    association = entity.associate(
        "127.0.0.1", gateway.port, ae_title="MEDCLIP", evt_handlers=[(evt.EVT_PDU_SENT, cut)]
    )
    assert "Status" not in association.send_c_store(orthanc.dataset(image))
    assert len(seen) >= 4
    wait_until(lambda: not list(gateway.spool.incoming.iterdir()))
    assert set(gateway.spool.digests()) == before
    assert send(gateway.port, [image]) == [0]
    assert len(set(gateway.spool.digests()) - before) == 1


@pytest.mark.skipif(not HAS_OPENSSL, reason="not installed: openssl")
def test_tls_wants_a_certificate_dimse_goes_out_and_missed_images_are_fetched(
    tmp_path, service, pacs: Orthanc
) -> None:
    files = tls_files(tmp_path / "tls")
    destination = {"kind": "dimse", "ae_title": "ORTHANC", "host": "127.0.0.1", "port": pacs.port}
    given = {"tls": files["gateway"], "report_class": "comprehensive"}
    given["catch_up"] = {"url": pacs.web, "every_s": 0.2}
    today = f"{dt.datetime.now().astimezone():%Y%m%d}"
    pacs.upload(radiograph(8, StudyDate=today))
    pacs.upload(radiograph(9, StudyDate=today, SOPClassUID=CAPTURE))  # not for us
    before = set(pacs.instances())
    with launcher.started(gateway_settings(tmp_path, service.url, destination, **given)) as gateway:
        ours = client_context(files["gateway"])
        with socket.create_connection(("127.0.0.1", gateway.port)):  # keeps nobody out
            assert send(gateway.port, [radiograph(6)], tls=ours) == [0]
        for context in (client_context(files["stranger"]), None):
            with pytest.raises(ConnectionRefusedError, match="aborted"):
                send(gateway.port, [radiograph(7)], tls=context, linger_s=2)
        with pytest.raises(ConnectionRefusedError, match="rejected"):
            send(gateway.port, [radiograph(7)], tls=ours, calling="STRANGER")
        wait_until(lambda: gateway.journal.counts()["done"] == 2)
        time.sleep(0.5)  # it looks again, and knows them
        assert sum(gateway.journal.counts().values()) == 3
        assert gateway.journal._rows("select code from images where state = 'refused'") == [
            ("sop_class",)
        ]
        made = pacs.datasets(set(pacs.instances()) - before)
        assert len(made) == 6
        assert "1.2.840.10008.5.1.4.1.1.88.33" in {item.SOPClassUID for item in made}


@pytest.fixture(scope="module")
def model_of_drawings(tmp_path_factory) -> Path:
    """A folder with a model whose range is that of sixty generated radiographs."""
    folder = tmp_path_factory.mktemp("drawings")
    files = (radiograph(number, pixels=drawing(number)) for number in range(60))
    drawn = [square(open_image(file), 64, equalize=False) for file in files]
    known = fit_input_range(drawn, [str(number) for number in range(60)])
    publish(folder / "model", known=known)
    return folder


def drawing(number: int) -> np.ndarray:
    """A generated radiograph of a patient of its own, 64 x 64 pixels."""
    grey = np.rint(255 * draw_patient(number, 11)[0].draw(128).pixels).astype(np.uint8)
    return np.asarray(Image.fromarray(grey).resize((64, 64)))


def test_a_ct_and_a_screenshot_are_refused_and_the_pacs_is_told(tmp_path, pacs, model_of_drawings):
    destination = {"kind": "dicomweb", "url": pacs.web}
    pixels = {40: drawing(70), 41: unlike.ct_slice(0), 42: unlike.screenshot(0)}
    with running_service(model_of_drawings, index="") as service:
        with service.client() as client:
            digest = client.get("/model").json()["digest"]
        settings = gateway_settings(tmp_path, service.url, destination)
        with launcher.started(settings) as gateway:
            before = set(pacs.instances())
            files = [radiograph(number, pixels=grey) for number, grey in pixels.items()]
            assert send(gateway.port, files) == [0, 0, 0]
            wait_until(lambda: sum(gateway.journal.counts()[end] for end in ENDS) == 3)
            assert gateway.journal.counts()["done"] == 1
            assert gateway.journal.refusals() == {"out_of_range": 2}
            made = pacs.datasets(set(pacs.instances()) - before)
    reports = {item.PatientID: item for item in made if item.SOPClassUID == REPORT}
    assert set(reports) == {"ID0040", "ID0041", "ID0042"}
    for patient, report in reports.items():
        texts = {str(element.value) for element in report.iterall() if element.VR == "UT"}
        assert {f"model sha256:{digest}", "engine:torch", "precision:float32"} <= texts
        said = [text for text in texts if text.startswith("NOT ANALYSED: the image is unlike")]
        assert len(said) == (patient != "ID0040")
    refused = [item for item in made if item.PatientID != "ID0040"]
    assert sorted(item.SOPClassUID for item in refused) == sorted(2 * [REPORT, CAPTURE])
    assert {item.SeriesDescription[:12] for item in refused} == {"NOT ANALYSED"}
