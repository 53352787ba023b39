"""A DICOMweb archive: images listed (QIDO) and fetched (WADO), objects stored (STOW).

Multipart is read and written here: the libraries for it parse every part, or give no raw bytes.

Source: DICOM PS3.18, 8.6, 10.4, 10.5 and 10.6.
"""

import json
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import anyio
import httpx
from anyio.from_thread import start_blocking_portal

from medclip_dcl.client import trusted, unreachable
from medclip_dcl.data.dicom.metadata import parse_header
from medclip_dcl.errors import ImageError, ServiceError
from medclip_dcl.files import read_keys

_PAGE = 200
_MOST_PAGES = 5000
_MOST_PASSES = 4
_CONNECTIONS = 4
_MOST_BYTES = 256 << 20  # of one image, before anything looks at it
_MOST_ANSWER_BYTES = 32 << 20  # of a listing
_UID = re.compile(r"[0-9][0-9.]{0,63}")
_BOUNDARY = re.compile(r'boundary="?([^";,]{1,100})"?', re.IGNORECASE)
_STUDY, _SERIES, _INSTANCE = "0020000D", "0020000E", "00080018"
_STORED, _FAILED, _REASON = "00081199", "00081198", "00081197"
_REFERENCED = "00081155"
_DUPLICATE = 0x0111  # "Duplicate SOP Instance": the archive has it
_ANSWERS_LATER = {429, 500, 502, 503, 504}
_JSON = {"Accept": "application/dicom+json"}


class ArchivedImage(NamedTuple):
    """Address of an image in an archive: study, series, instance."""

    study: str
    series: str
    instance: str


class _Reply(NamedTuple):
    """Answer of an archive; a body beyond what it may have ends behind that."""

    status: int
    content_type: str
    body: bytes


class DicomWeb:
    """A connection to an archive, for a `with` block; threads may share it.

    What only asks is asked three times where no answer comes. Every method raises ServiceError
    where the archive cannot be reached, refuses, or gives something else than DICOMweb.
    """

    def __init__(
        self,
        url: str,
        key_file: Path | None = None,
        *,
        ca: Path | None = None,
        deadline_s: float = 300,
        waits_s: Sequence[float] = (1, 4),
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Set the connection up; nothing is sent yet.

        Args:
            url: root of the DICOMweb service, such as `http://127.0.0.1:8042/dicom-web`.
            key_file: file whose line is sent as `Authorization`, such as `Bearer KEY`.
            ca: PEM file of the authorities whose certificates are trusted; None: those that the
                variables SSL_CERT_FILE and SSL_CERT_DIR name, else certifi's.
            deadline_s: limit of one request and its whole answer.
            waits_s: times to wait before a question is asked again, seconds.
            transport: what carries the requests; None: the network.
        """
        if not url.startswith(("http://", "https://")):
            raise ServiceError("no_url", f"url = {url!r} does not begin with http:// or https://")
        # What is compressed has no size that could be bounded before it is unpacked.
        headers = {"Accept-Encoding": "identity"}
        headers |= {"Authorization": read_keys(key_file)[0]} if key_file else {}
        self._deadline_s, self._waits_s = deadline_s, waits_s
        self._open = ExitStack()
        try:
            self._http = httpx.AsyncClient(
                base_url=url.rstrip("/"),
                headers=headers,
                timeout=min(60, deadline_s),  # of silence
                trust_env=False,  # proxies of the environment would see names and keys
                verify=trusted(ca),
                transport=transport,
            )
        except httpx.InvalidURL as error:
            raise ServiceError("no_url", f"url = {url!r} is malformed: {error}") from error

    def __enter__(self) -> Self:
        # A deadline of a whole exchange, dripping heads included, needs an event loop: blocking
        # reads know one of silence alone.
        self._portal = self._open.enter_context(start_blocking_portal())
        self._open.callback(self._portal.call, self._http.aclose)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.__exit__(kind, error, trace)  # an error ends what is still being asked

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
        with ThreadPoolExecutor(_CONNECTIONS) as threads:
            listed = threads.map(self._instances, sorted(series))
            return sorted({image for images in listed for image in images})

    def _instances(self, series: tuple[str, str]) -> list[ArchivedImage]:
        path = f"/studies/{series[0]}/series/{series[1]}/instances"
        return [ArchivedImage(*series, _uid(row, _INSTANCE)) for row in self._pages(path, {})]

    def fetch(self, image: ArchivedImage) -> bytes:
        """Fetch an image as it is stored, in whatever transfer syntax.

        Raises:
            ImageError: the archive has it no longer, it is larger than any image, or something else
                came in its place: `missing`, `too_many_bytes` or `wrong_image`.
        """
        path = f"/studies/{image.study}/series/{image.series}/instances/{image.instance}"
        accept = 'multipart/related; type="application/dicom"; transfer-syntax=*'
        reply = self._get(path, _MOST_BYTES, headers={"Accept": accept})
        if reply.status in {404, 410}:
            raise ImageError("missing", "the archive has the image no longer")
        _require_success(reply.status)
        if len(reply.body) > _MOST_BYTES:
            raise ImageError("too_many_bytes", f"an image exceeds {_MOST_BYTES} bytes")
        data = _first_part(reply.body, reply.content_type)
        header = parse_header(data)
        if header is None or (header.study_id, header.image_id) != (image.study, image.instance):
            raise ImageError("wrong_image", "the archive gave something else than was asked for")
        return data

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
        headers = {"Content-Type": kind, **_JSON}
        body += f"--{boundary}--\r\n".encode()
        reply = self._ask("POST", "/studies", _MOST_ANSWER_BYTES, content=body, headers=headers)
        if reply.status != httpx.codes.CONFLICT:
            _require_success(reply.status)
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
                f"(status {reply.status}, reasons {reasons}); its log says why",
            )

    def _pages(self, path: str, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Give the rows of every page: until one is empty, since archives give fewer than asked."""
        offset = 0
        last: list[dict[str, Any]] = []
        for _ in range(_MOST_PAGES):
            paged = {**query, "limit": str(_PAGE), "offset": str(offset)}
            reply = self._get(path, _MOST_ANSWER_BYTES, params=paged, headers=_JSON)
            _require_success(reply.status)
            rows = [] if reply.status == httpx.codes.NO_CONTENT else _json(reply)
            if not isinstance(rows, list):
                raise ServiceError("no_answer", "the archive's listing is not a list of objects")
            if not rows or rows == last:  # no offset known: the same
                return
            yield from rows
            offset, last = offset + len(rows), rows
        raise ServiceError("no_answer", f"the archive lists more than {_MOST_PAGES} pages")

    def _get(self, path: str, most_bytes: int, **question: Any) -> _Reply:
        """Ask, and again after each waiting time where no answer came, or that it comes later."""
        for wait_s in self._waits_s:
            try:
                reply = self._ask("GET", path, most_bytes, **question)
                if reply.status not in _ANSWERS_LATER:
                    return reply
            except ServiceError as error:
                if error.code != "unreachable":
                    raise
            time.sleep(wait_s)
        return self._ask("GET", path, most_bytes, **question)

    def _ask(self, method: str, path: str, most_bytes: int, **request: Any) -> _Reply:
        """Exchange a request for a whole answer, bounded in time and size."""
        exchange = partial(self._exchange, method, path, most_bytes, **request)
        try:
            return self._portal.call(exchange)
        except (httpx.HTTPError, TimeoutError) as error:
            raise unreachable(error, "the archive") from error

    async def _exchange(self, method: str, path: str, most_bytes: int, **request: Any) -> _Reply:
        with anyio.fail_after(self._deadline_s):
            async with self._http.stream(method, path, **request) as reply:
                if reply.headers.get("Content-Encoding", "identity").lower() != "identity":
                    raise ServiceError(
                        "no_answer", "the archive compresses answers unasked; let it not"
                    )
                body = bytearray()
                async for part in reply.aiter_bytes():
                    body += part
                    if len(body) > most_bytes:
                        break
                return _Reply(reply.status_code, reply.headers.get("Content-Type", ""), bytes(body))


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
        raise ImageError("wrong_image", "the archive sent a part without begin or end")
    return body[start:end]


def _json(reply: _Reply) -> Any:
    if len(reply.body) > _MOST_ANSWER_BYTES:
        raise ServiceError("no_answer", f"the archive's answer exceeds {_MOST_ANSWER_BYTES} bytes")
    try:
        return json.loads(reply.body)
    except (ValueError, RecursionError) as error:
        raise ServiceError(
            "no_answer", f"status {reply.status} without JSON; is the url that of a DICOMweb?"
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
