"""A DICOMweb archive: images listed (QIDO) and fetched (WADO), objects stored (STOW); as a source.

Multipart is read and written here: the libraries for it parse every part, or give no raw bytes.

Source: DICOM PS3.18, 8.6, 10.4, 10.5 and 10.6.
"""

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import httpx

from medclip_dcl.data.sources.dicom_folder import read_dicom_folder
from medclip_dcl.data.sources.records import RawStudies, Reject, Resolve, SourceConfig
from medclip_dcl.errors import ConfigError, ImageError, ServiceError
from medclip_dcl.files import disk_faults_named, read_keys, remove_staged, write_bytes
from medclip_dcl.progress import Progress

_PAGE = 200
_MOST_PASSES = 4
_CONNECTIONS = 4
_MAX_BYTES = 256 << 20  # of one image, before anything looks at it
_UID = re.compile(r"[0-9][0-9.]{0,63}")
_BOUNDARY = re.compile(r'boundary="?([^";,]{1,100})"?', re.IGNORECASE)
_STUDY, _SERIES, _INSTANCE = "0020000D", "0020000E", "00080018"
_STORED, _FAILED, _REASON = "00081199", "00081198", "00081197"
_REFERENCED = "00081155"
_DUPLICATE = 0x0111  # "Duplicate SOP Instance": the archive has it


class ArchivedImage(NamedTuple):
    """Where an image is in an archive."""

    study: str
    series: str
    instance: str


class DicomWeb:
    """A connection to an archive; closed at the end of a `with` block. Threads may share it.

    Every method raises ServiceError where the archive cannot be reached, refuses, or gives
    something else than DICOMweb.
    """

    def __init__(
        self,
        url: str,
        key_file: Path | None = None,
        *,
        timeout_s: float = 60,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Set the connection up; nothing is sent yet.

        Args:
            url: root of the DICOMweb service, such as `http://127.0.0.1:8042/dicom-web`.
            key_file: file whose line is sent as `Authorization`, such as `Bearer KEY`.
            timeout_s: limit of one request's silence.
            transport: what carries the requests; None: the network.
        """
        if not url.startswith(("http://", "https://")):
            raise ServiceError("no_url", f"url = {url!r} does not begin with http:// or https://")
        headers = {"Authorization": read_keys(key_file)[0]} if key_file else {}
        try:
            self._http = httpx.Client(
                base_url=url.rstrip("/"),
                headers=headers,
                timeout=timeout_s,
                trust_env=False,
                transport=transport,
            )
        except httpx.InvalidURL as error:
            raise ServiceError("no_url", f"url = {url!r} is malformed: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def images(self, modalities: Sequence[str], dates: str = "") -> list[ArchivedImage]:
        """List the images of some modalities, each once, by UIDs.

        `dates`: of studies, a day or a range such as `20260101-20260131`; empty: all.
        """
        series: set[tuple[str, str]] = set()
        for modality in modalities:
            query = {"Modality": modality} | ({"StudyDate": dates} if dates else {})
            # An archive without a fixed order repeats rows from page to page, and then skips
            # others: where it did, it is asked again until a pass brings nothing new.
            for _ in range(_MOST_PASSES):
                rows = [
                    (_uid(row, _STUDY), _uid(row, _SERIES)) for row in self._pages("/series", query)
                ]
                known = len(series)
                series.update(rows)
                if len(series) == known or len(set(rows)) == len(rows):
                    break
        return sorted(
            {
                ArchivedImage(study, name, _uid(row, _INSTANCE))
                for study, name in series
                for row in self._pages(f"/studies/{study}/series/{name}/instances", {})
            }
        )

    def fetch(self, image: ArchivedImage) -> bytes:
        """Fetch an image as it is stored, in whatever transfer syntax.

        Raises:
            ImageError: the archive has it no longer, or it is larger than any image.
        """
        path = f"/studies/{image.study}/series/{image.series}/instances/{image.instance}"
        accept = 'multipart/related; type="application/dicom"; transfer-syntax=*'
        data = bytearray()
        try:
            with self._http.stream("GET", path, headers={"Accept": accept}) as reply:
                if reply.status_code in {404, 410}:
                    raise ImageError("missing", "the archive has the image no longer")
                _require_success(reply.status_code)
                for chunk in reply.iter_bytes():
                    data += chunk
                    if len(data) > _MAX_BYTES:
                        raise ImageError("too_many_bytes", f"an image exceeds {_MAX_BYTES} bytes")
                return _first_part(bytes(data), reply.headers.get("Content-Type", ""))
        except httpx.HTTPError as error:
            raise _unreachable(error) from error

    def store(self, files: Mapping[str, bytes]) -> None:
        """Store objects, SOP instance UID -> file; what the archive has already stays as it is.

        Raises:
            ServiceError: `not_stored` where the archive does not name every object as stored: a
                success without that was seen to mean nothing.
        """
        if not files:
            return
        boundary = secrets.token_hex(16)
        head = f"--{boundary}\r\nContent-Type: application/dicom\r\n\r\n".encode()
        body = b"".join(head + data + b"\r\n" for data in files.values())
        kind = f'multipart/related; type="application/dicom"; boundary={boundary}'
        headers = {"Content-Type": kind, "Accept": "application/dicom+json"}
        try:
            reply = self._http.post(
                "/studies", content=body + f"--{boundary}--\r\n".encode(), headers=headers
            )
        except httpx.HTTPError as error:
            raise _unreachable(error) from error
        if reply.status_code != httpx.codes.CONFLICT:
            _require_success(reply.status_code)
        tree = _json(reply)
        # Orthanc gives an empty sequence of failures on success: items are counted, not keys.
        failed = _values(tree, _FAILED)
        there = [*_values(tree, _STORED), *(row for row in failed if _reason(row) == _DUPLICATE)]
        missing = set(files) - {_uid(row, _REFERENCED) for row in there}
        if missing:
            reasons = sorted({_reason(row) for row in failed})
            raise ServiceError(
                "not_stored",
                f"the archive did not store {len(missing)} of {len(files)} objects "
                f"(status {reply.status_code}, reasons {reasons}); its log says why",
            )

    def _pages(self, path: str, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Give the rows of every page: until one is empty, since archives give fewer than asked."""
        offset = 0
        last: list[dict[str, Any]] = []
        while True:
            paged = {**query, "limit": str(_PAGE), "offset": str(offset)}
            try:
                reply = self._http.get(
                    path, params=paged, headers={"Accept": "application/dicom+json"}
                )
            except httpx.HTTPError as error:
                raise _unreachable(error) from error
            _require_success(reply.status_code)
            rows = [] if reply.status_code == httpx.codes.NO_CONTENT else _json(reply)
            if not isinstance(rows, list) or not rows or rows == last:  # no offset known: the same
                return
            yield from rows
            offset, last = offset + len(rows), rows


def read_dicomweb(root: Path, settings: SourceConfig, resolve: Resolve) -> RawStudies:
    """Fetch the images of an archive into a folder, and list them as `read_dicom_folder` does.

    Images that are there are not fetched again, so a killed run goes on.

    Raises:
        ConfigError: `source.archive` is empty.
        ServiceError: the archive cannot be reached or refuses.
        ArtifactUnwritable: the disk is full, or fails, or may not be written to.
    """
    if not settings.archive:
        raise ConfigError("source.kind dicomweb needs source.archive, the URL of its DICOMweb")
    key = resolve(settings.archive_key) if settings.archive_key else None
    with disk_faults_named(root), DicomWeb(settings.archive, key) as archive:
        root.mkdir(parents=True, exist_ok=True)
        remove_staged(root)  # of a run that was killed: half an image, or a whole one twice
        listed = archive.images(settings.modalities, settings.archive_dates)

        def mirror(image: ArchivedImage) -> Reject | None:
            path = root / image.study / f"{image.instance}.dcm"
            try:
                if not path.exists():
                    data = archive.fetch(image)
                    path.parent.mkdir(exist_ok=True)
                    write_bytes(path, data)
            except ImageError:
                return Reject(image.instance, "missing_image")
            return None

        with (
            Progress("fetch images", len(listed), "image") as progress,
            ThreadPoolExecutor(_CONNECTIONS) as threads,
        ):
            rejects = []
            for reject in threads.map(mirror, listed):
                rejects += [reject] if reject else []
                progress.advance(1)
    found = read_dicom_folder(root, settings, resolve)
    wanted = {image.instance for image in listed}  # the folder may hold what another query fetched
    images = [image for image in found.images if image.image_id in wanted]
    return replace(found, images=images, rejects=[*found.rejects, *rejects])


def _first_part(body: bytes, content_type: str) -> bytes:
    """Cut the file out of a multipart body of one part; some archives send it bare."""
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        return body
    mark = b"--" + boundary[1].encode("ascii", "replace")
    begin = body.find(mark)
    start = body.find(b"\r\n\r\n", begin) + 4
    end = body.rfind(b"\r\n" + mark)
    if begin < 0 or start < 4 or end < start:
        raise ServiceError("no_answer", "the archive sent a part without begin or end")
    return body[start:end]


def _json(reply: httpx.Response) -> Any:
    try:
        return reply.json()
    except ValueError as error:
        raise ServiceError(
            "no_answer", f"status {reply.status_code} without JSON; is the url that of a DICOMweb?"
        ) from error


def _values(tree: Any, tag: str) -> list[Any]:
    element = tree.get(tag, {}) if isinstance(tree, dict) else {}
    values = element.get("Value", []) if isinstance(element, dict) else []
    return list(values) if isinstance(values, list) else []


def _uid(row: Any, tag: str) -> str:
    # A UID becomes a part of paths, here and in URLs.
    value = next(iter(_values(row, tag)), "")
    if not isinstance(value, str) or not _UID.fullmatch(value):
        raise ServiceError("no_answer", f"the archive listed something without the UID ({tag})")
    return value


def _reason(row: Any) -> int:
    value = next(iter(_values(row, _REASON)), 0)
    return value if isinstance(value, int) else 0


def _require_success(status: int) -> None:
    if not 200 <= status < 300:
        raise ServiceError(
            "archive", f"the archive answered with status {status}; is the key right?"
        )


def _unreachable(error: Exception) -> ServiceError:
    return ServiceError(
        "unreachable", f"the archive gave no answer ({type(error).__name__}); is it up?"
    )
