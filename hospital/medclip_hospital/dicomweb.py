"""A DICOMweb archive: images listed (QIDO) and fetched (WADO), objects stored (STOW).

Multipart is read and written here: the libraries for it parse every part, or give no raw bytes.

Source: DICOM PS3.18, 8.6, 10.4, 10.5 and 10.6.
"""

import json
import logging
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email import message_from_string
from pathlib import Path
from typing import Any, NamedTuple, Self

import httpx

from medclip_dcl.client import Exchange, Reply, UnboundedReply
from medclip_dcl.core.errors import ImageError, ServiceError
from medclip_dcl.core.files import read_keys
from medclip_dcl.data.dicom.metadata import parse_header

LOGGER = logging.getLogger(__name__)
CONNECTIONS = 4
"""Requests to an archive at a time."""
DUPLICATE = 0x0111
""""Duplicate SOP Instance", of STOW and C-STORE: the archive has it."""
_PAGE = 200
_MOST_PASSES = 4
_MOST_BYTES = 256 << 20  # of one image, before anything looks at it
_MOST_ANSWER_BYTES = 8 << 20  # of a page, where rows of some kB are asked for by the hundred
_NARROWER = "`source.archive_dates`, or `days` of the gateway's `catch_up`"
_MORE = re.compile(r"\b(\d+) additional results")
_UID = re.compile(r"[0-9][0-9.]{0,63}")
_STUDY, _SERIES, _INSTANCE = "0020000D", "0020000E", "00080018"
_STORED, _FAILED, _REASON = "00081199", "00081198", "00081197"
_REFERENCED = "00081155"
_ANSWERS_LATER = {429, 500, 502, 503, 504}
_JSON = {"Accept": "application/dicom+json"}


class ArchivedImage(NamedTuple):
    """Address of an image in an archive: study, series, instance."""

    study: str
    series: str
    instance: str


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
        listing_s: float = 3 * 3600,
        most_listed: int = 1_000_000,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Set the connection up; nothing is sent yet.

        Args:
            url: root of the DICOMweb service, such as `http://127.0.0.1:8042/dicom-web`.
            key_file: file whose line is sent as `Authorization`, such as `Bearer KEY`.
            ca: PEM file of the authorities whose certificates are trusted; None: those that the
                variables SSL_CERT_FILE and SSL_CERT_DIR name, else certifi's.
            deadline_s: limit of one request and its whole answer.
            waits_s: times to wait before a question is asked again, seconds.
            listing_s: limit of `images` as a whole.
            most_listed: rows that all pages of `images` may have together.
            transport: what carries the requests; None: the network.
        """
        self._url = url
        self._waits_s, self._listing_s, self._most_listed = waits_s, listing_s, most_listed
        self._parsing = threading.Lock()
        self.repeated_rows = 0
        """Rows of the longest page that came again in place of the next: there may be more."""
        self._http = Exchange(
            url.rstrip("/"),
            "the archive",
            deadline_s=deadline_s,
            ca=ca,
            headers={"Authorization": read_keys(key_file)[0]} if key_file else {},
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def images(self, modalities: Sequence[str], dates: str = "") -> list[ArchivedImage]:
        """List the images of some modalities, each once, by UIDs.

        `dates`: of studies, a day or a range such as `20260101-20260131`; empty: all. ServiceError
        as every method; `listing` where the archive lists too much, takes too long, or cannot be
        asked for what follows a page: no list is better than a part.
        """
        bound = _Bound(self._most_listed, time.monotonic() + self._listing_s)
        series: set[tuple[str, str]] = set()
        for modality in modalities:
            query = {"Modality": modality} | ({"StudyDate": dates} if dates else {})
            # An archive without a fixed order repeats rows from page to page, and then skips
            # others: where it did, it is asked again until a pass brings nothing new.
            for _ in range(_MOST_PASSES):
                rows = list(self._pages("/series", query, (_STUDY, _SERIES), bound))
                before = len(series)
                series.update((study, own) for study, own in rows)
                if len(series) == before or len(set(rows)) == len(rows):
                    break

        def instances(series: tuple[str, str]) -> list[ArchivedImage]:
            path = f"/studies/{series[0]}/series/{series[1]}/instances"
            return [
                ArchivedImage(*series, uid) for (uid,) in self._pages(path, {}, (_INSTANCE,), bound)
            ]

        with ThreadPoolExecutor(CONNECTIONS) as threads:
            try:
                listed = threads.map(instances, sorted(series))
                archived = sorted({image for images in listed for image in images})
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                self._http.close()  # ends what is still being asked
                raise
        if self.repeated_rows:
            LOGGER.warning(
                "%s answers the question for the next page with the %d rows of the one before: it "
                "ignores `offset`, and whether it has more cannot be seen; compare the %d images "
                "with its own count, and ask for less, by %s",
                self._url, self.repeated_rows, len(archived), _NARROWER
            )  # fmt: skip
        return archived

    def fetch(self, image: ArchivedImage) -> bytes:
        """Fetch an image as it is stored, in whatever transfer syntax.

        ImageError where the archive has it no longer, it is larger than any image, or something
        else came in its place: `missing`, `too_many_bytes` or `wrong_image`.
        """
        path = f"/studies/{image.study}/series/{image.series}/instances/{image.instance}"
        accept = 'multipart/related; type="application/dicom"; transfer-syntax=*'
        try:
            reply = self._get(path, _MOST_BYTES, headers={"Accept": accept})
        except UnboundedReply as error:
            raise ImageError("too_many_bytes", error.message) from error
        if reply.status in {404, 410}:
            raise ImageError("missing", "the archive has the image no longer")
        _require_success(reply.status)
        data = _first_part(reply.body, reply.headers.get("Content-Type", ""))
        header = parse_header(data)
        if header is None or (header.study_id, header.image_id) != (image.study, image.instance):
            raise ImageError("wrong_image", "the archive gave something else than was asked for")
        return data

    def store(self, files: Mapping[str, bytes]) -> None:
        """Store objects, SOP instance UID -> file; what the archive has already stays as it is.

        ServiceError, `not_stored`, where the archive does not name every object as stored: a
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
        reply = self._http.ask(
            "POST", "/studies", _MOST_ANSWER_BYTES, content=body, headers=headers
        )
        if reply.status != httpx.codes.CONFLICT:
            _require_success(reply.status)
        tree = _json(reply)
        # Orthanc gives an empty sequence of failures on success: items are counted, not keys.
        failed = _values(tree, _FAILED)
        there = [*_values(tree, _STORED), *(row for row in failed if _reason(row) == DUPLICATE)]
        missing = set(files) - {_uid(row, _REFERENCED) for row in there}
        if missing:
            reasons = sorted({_reason(row) for row in failed})
            raise ServiceError(
                "not_stored",
                f"the archive did not store {len(missing)} of {len(files)} objects "
                f"(status {reply.status}, reasons {reasons}); its log says why",
            )

    def _pages(
        self, path: str, query: Mapping[str, str], tags: Sequence[str], bound: "_Bound"
    ) -> Iterator[tuple[str, ...]]:
        """Return UIDs of the rows of every page: until one is empty, since pages may be short."""
        offset, has_more = 0, False
        seen: set[tuple[str, ...]] = set()
        while True:
            paged = {**query, "limit": str(_PAGE), "offset": str(offset)}
            reply = self._get(path, _MOST_ANSWER_BYTES, params=paged, headers=_JSON)
            _require_success(reply.status)
            with self._parsing:  # one at a time: as objects a page takes many times its bytes
                listed = [] if reply.status == httpx.codes.NO_CONTENT else _json(reply)
                if not isinstance(listed, list):
                    raise ServiceError("no_answer", "the archive's listing is no list of objects")
                rows = [tuple(_uid(row, tag) for tag in tags) for row in listed]
                bound.rows -= len(rows)
            brings_nothing = seen.issuperset(rows)
            if brings_nothing and (has_more or len(rows) >= _PAGE):
                raise ServiceError(
                    "listing",
                    f"behind {offset} rows the archive has more, and does not give them where it "
                    f"is asked for them (offset); ask for less, by {_NARROWER}",
                )
            if bound.rows < 0 or time.monotonic() > bound.end:
                what = f"more than {self._most_listed} rows" if bound.rows < 0 else "for too long"
                line = f"the archive lists {what}; ask for less, by {_NARROWER}"
                raise ServiceError("listing", line)
            yield from rows
            if brings_nothing:
                self.repeated_rows = max(self.repeated_rows, len(rows))
                return
            seen.update(rows)
            offset += len(rows)
            has_more = _announced(reply.headers, offset) > offset

    def _get(self, path: str, most_bytes: int, **question: Any) -> Reply:
        """Ask, and again after each waiting time where no answer came, or that it comes later."""
        for wait_s in self._waits_s:
            try:
                reply = self._http.ask("GET", path, most_bytes, **question)
                if reply.status not in _ANSWERS_LATER:
                    return reply
            except ServiceError as error:
                if error.code != "unreachable":
                    raise
            time.sleep(wait_s)
        return self._http.ask("GET", path, most_bytes, **question)


@dataclass
class _Bound:
    """What is left to all pages of a listing."""

    rows: int
    end: float


def _announced(headers: httpx.Headers, offset: int) -> int:
    """Return the number of rows that an archive says it has, behind so many; 0: it does not say.

    Source: DICOM PS3.18, 8.3.4.4; `X-Total-Count` is a custom of some archives.
    """
    total, more = headers.get("X-Total-Count", ""), _MORE.search(headers.get("Warning", ""))
    return max(int(total[:9]) if total.isdecimal() else 0, offset + int(more[1][:9]) if more else 0)


def _first_part(body: bytes, content_type: str) -> bytes:
    """Cut the file out of a multipart body of one part; some archives send it bare."""
    boundary = message_from_string(f"Content-Type: {content_type}").get_boundary()
    if not boundary:
        return body
    mark = b"--" + boundary.encode("ascii", "replace")
    begin = body.find(mark)
    start = body.find(b"\r\n\r\n", begin) + 4
    end = body.rfind(b"\r\n" + mark)
    if begin < 0 or start < 4 or end < start:
        raise ImageError("wrong_image", "the archive sent a part without begin or end")
    return body[start:end]


def _json(reply: Reply) -> Any:
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
    uid = value.rstrip("\0 ") if isinstance(value, str) else ""  # padded, as it is in files
    if not _UID.fullmatch(uid):
        raise ServiceError("no_answer", f"the archive listed something without the UID ({tag})")
    return uid


def _reason(row: Any) -> int:
    value = next(iter(_values(row, _REASON)), 0)
    return value if isinstance(value, int) else 0


def _require_success(status: int) -> None:
    if not httpx.codes.is_success(status):
        line = f"the archive answered with status {status}; is the key right?"
        raise ServiceError("archive", line)
