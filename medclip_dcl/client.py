"""A client of the service, and its command line.

    python -m medclip_dcl.client classify IMAGE [IMAGE ...] --url URL --key-file FILE
    python -m medclip_dcl.client ground IMAGE "left pleural effusion" --url URL
    python -m medclip_dcl.client embed IMAGE IMAGE --url URL
    python -m medclip_dcl.client retrieve --image IMAGE --target text --url URL

A busy service is asked again after the time that it names, within the client's patience. The
name of an image is not sent, a key stands in a file, and proxies of the environment are not used.
"""

import argparse
import json
import os
import socket
import ssl
import sys
import time
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeVar

import httpcore
import httpx
from pydantic import ValidationError

from .core.errors import ConfigError, ImageError, MedclipError, ServiceError
from .core.files import read_keys
from .schemas import (
    OUT_OF_RANGE,
    OUT_OF_RANGE_NOTE,
    ClassifyAnswer,
    ClassifyAnswers,
    EmbedAnswer,
    GroundAnswer,
    ImageFacts,
    ModelAnswer,
    RefusedImage,
    RetrieveAnswer,
    Schema,
)

_PART_BYTES = 1 << 14  # a slow reader may take its time for each
_end: ContextVar[float] = ContextVar("end")  # of this thread's exchange
_BUSY = {429, 503}
_SHORTEST_WAIT_S = 0.1
_REMEDIES: tuple[tuple[type[BaseException], str], ...] = (
    (ssl.SSLError, "TLS failed; does it speak TLS at this port?"),
    (ConnectionRefusedError, "the connection was refused; is it up, and is the port right?"),
    (socket.gaierror, "the name of its host is unknown; is the url right?"),
    (TimeoutError, "the time ran out; is it up, and does a firewall let this through?"),
    (httpx.TimeoutException, "the time ran out; is it up, and does a firewall let this through?"),
    (httpx.ProtocolError, "what came is not HTTP; is the port right?"),
    (httpx.NetworkError, "the connection ended early; is it up?"),
)


_OF_IMAGES = {413, 415, 422}
_OF_QUESTIONS = {"body_too_large", "content_encoding", "invalid_request", "invalid_query"}
"""What has a status of a refused image, and is about the question."""

_Answer = TypeVar("_Answer", bound=Schema)

Image = Path | str | bytes  # path of a DICOM, PNG or JPEG file, or the whole file
_ONE_IMAGE = (Path, str, bytes)
Findings = str | Mapping[str, Any] | Sequence[str | Sequence[Any] | Mapping[str, Any]]
"""What findings are asked by."""


class Reply(NamedTuple):
    """A whole answer."""

    status: int
    headers: httpx.Headers
    body: bytes


class UnboundedReply(ServiceError):
    """The answer is larger than allowed, or compressed: `no_answer`; the message says which."""

    def __init__(self, whom: str, why: str) -> None:
        super().__init__("no_answer", f"the answer of {whom} {why}; is the url right?")


class Exchange:
    """Connections to one server, kept open between exchanges; threads may share it.

    Its bounds hold whatever the other side does: one deadline, and a size. A limit of silence alone
    is never reached by a head or body that drips, so each read and each part that is written waits
    for what is left of the exchange's time. What is compressed has no size that could be bounded
    before it is unpacked, so nothing compressed is taken.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        deadline_s: float,
        ca: Path | None,
        headers: Mapping[str, str] | None = None,
        auth: httpx.Auth | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Set it up; nothing is sent yet.

        Args:
            url: what paths are relative to.
            name: what errors call the server.
            deadline_s: limit of a request and its whole answer.
            ca: whose certificates are trusted, as `trusted` takes it.
            headers: of every request.
            auth: adds a key to every request.
            transport: what carries the requests; None: the network.

        Raises:
            ServiceError: `no_url`, the url is malformed.
        """
        if not url.lower().startswith(("http://", "https://")):
            raise ServiceError("no_url", f"url = {url!r} does not begin with http:// or https://")
        self._name, self._deadline_s = name, deadline_s
        self._network = _Network()
        context = trusted(ca) if ca or url.lower().startswith("https") else None  # some 25 ms
        if transport is None:
            transport = httpx.HTTPTransport(verify=context or False)
            transport._pool = httpcore.ConnectionPool(
                ssl_context=context, network_backend=self._network
            )
        try:
            self._http = httpx.Client(
                base_url=url,
                headers={"Accept-Encoding": "identity", **(headers or {})},
                auth=auth,
                timeout=deadline_s,
                trust_env=False,  # proxies of the environment would see images, names and keys
                transport=transport,
            )
        except httpx.InvalidURL as error:
            raise ServiceError("no_url", f"url = {url!r} is malformed: {error}") from error

    def ask(self, method: str, path: str, most_bytes: int, **request: Any) -> Reply:
        """Send a request and wait for its whole answer.

        Raises:
            ServiceError: the deadline has passed, nothing connects, or what comes is not
                HTTP.
            UnboundedReply: the answer exceeds `most_bytes`, or is compressed.
        """
        _end.set(time.monotonic() + self._deadline_s)
        try:
            with self._http.stream(method, path, **request) as reply:
                if reply.headers.get("Content-Encoding", "identity").lower() != "identity":
                    why = "is compressed, unasked: let the server not do it"
                    raise UnboundedReply(self._name, why)
                body = bytearray()
                for part in reply.iter_bytes():
                    body += part
                    if len(body) > most_bytes:
                        raise UnboundedReply(self._name, f"exceeds {most_bytes} bytes")
                return Reply(reply.status_code, reply.headers, bytes(body))
        except httpx.HTTPError as error:
            raise unreachable(error, self._name) from error

    def close(self) -> None:
        """Close the connections; whoever still waits for an answer gets none."""
        self._network.shut_down()
        self._http.close()


class _Network(httpcore.SyncBackend):
    def __init__(self) -> None:
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 (the deadline's is less)
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        stream = super().connect_tcp(host, port, _left_s(), local_address, socket_options)
        return self.watched(stream)

    def watched(self, stream: httpcore.NetworkStream) -> "_Stream":
        self._sockets.add(stream.get_extra_info("socket"))
        return _Stream(self, stream)

    def shut_down(self) -> None:
        for connection in list(self._sockets):
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)  # closing wakes no reader


class _Stream(httpcore.NetworkStream):
    def __init__(self, network: _Network, stream: httpcore.NetworkStream) -> None:
        self._network, self._stream = network, stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002
        return self._stream.read(max_bytes, _left_s())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        for start in range(0, len(buffer), _PART_BYTES):
            self._stream.write(buffer[start : start + _PART_BYTES], _left_s())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002
    ) -> httpcore.NetworkStream:
        return self._network.watched(
            self._stream.start_tls(ssl_context, server_hostname, _left_s())
        )

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _left_s() -> float:
    left_s = _end.get() - time.monotonic()
    if left_s <= 0:
        raise httpcore.ReadTimeout("the deadline has passed")
    return left_s


class Client:
    """A connection to one service; closed at the end of a `with` block.

    Every question takes DICOM, PNG or JPEG, as a path or as its bytes; where a list is taken, one
    image or sentence may stand alone. It raises ImageError where the image cannot be read,
    ServiceError where the service cannot be reached or refuses.
    """

    def __init__(
        self,
        url: str,
        key: str | Path = "",
        *,
        ca: Path | None = None,
        timeout_s: float = 60,
        patience_s: float = 60,
        most_bytes: int = 256 << 20,
    ) -> None:
        """Set the connection up; nothing is sent yet.

        Args:
            url: address of the service, such as `http://127.0.0.1:8000`.
            key: API key, or a file whose first key is read for each question, so that keys may
                be rotated; empty where the service asks for none.
            ca: PEM file of the authorities whose certificates are trusted; None: those that the
                variables SSL_CERT_FILE and SSL_CERT_DIR name, else certifi's.
            timeout_s: limit of one attempt, from its first byte to the last of its answer.
            patience_s: time within which a busy service is asked again.
            most_bytes: largest answer that is taken; one that is compressed is not.
        """
        self._patience_s, self._most_bytes = patience_s, most_bytes
        self._http = Exchange(url, url, deadline_s=timeout_s, ca=ca, auth=_Key(key))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def classify(
        self, image: Image, findings: Findings | None = None, *, explain: bool = False
    ) -> ClassifyAnswer:
        """Ask which findings an image shows, with heatmaps where `explain`.

        `findings` are names, pairs of prompts, or mappings with `name`, `positive` and perhaps
        `negative`, one or several; None: the model's own.
        """
        fields = _classify_fields(findings, explain=explain)
        return self._ask("/v1/classify", ClassifyAnswer, fields, image)

    def classify_all(
        self, images: Sequence[Image], findings: Findings | None = None, *, explain: bool = False
    ) -> list[ClassifyAnswer | RefusedImage]:
        """Ask `classify` about several images at once, up to `max_images` of `model().limits`.

        The answers are in their order; an image that the service cannot read is refused in its
        place.
        """
        images = _listed(images, _ONE_IMAGE)
        if len(images) != 1:
            fields = _classify_fields(findings, explain=explain)
            return self._ask("/v1/classify", ClassifyAnswers, fields, *images).answers
        try:  # the service answers a single image as such
            return [self.classify(images[0], findings, explain=explain)]
        except ServiceError as error:
            if error.status not in _OF_IMAGES or error.code in _OF_QUESTIONS:
                raise
            return [RefusedImage(code=error.code, message=str(error))]

    def ground(
        self, image: Image, phrases: Sequence[str], threshold: float | None = None
    ) -> GroundAnswer:
        """Ask where phrases are seen on an image.

        `threshold` is the score from which boxes are traced; None: the service's rule.
        """
        fields: dict[str, Any] = {"phrase": _listed(phrases, str)}
        if threshold is not None:
            fields["threshold"] = str(threshold)
        return self._ask("/v1/ground", GroundAnswer, fields, image).about(fields["phrase"])

    def embed(
        self,
        images: Sequence[Image] = (),
        *,
        texts: Sequence[str] = (),
        what: Literal["global", "regions"] = "global",
        encoding: Literal["json", "base64"] = "base64",
    ) -> EmbedAnswer:
        """Ask for the vectors of images or of sentences; `answer.to_numpy()` has them as an array.

        Args:
            images: up to `max_images` of `model().limits`; of several, one that the service cannot
                read has NaN for vectors and a `RefusedImage` in `answer.images`.
            texts: sentences, instead of images; as many at most.
            what: of an image the unit mean of its regions, or all regions.
            encoding: how they travel; base64 is smaller and faster.
        """
        fields: dict[str, Any] = {"what": what, "format": encoding}
        if texts:
            fields["text"] = _listed(texts, str)
        return self._ask("/v1/embed", EmbedAnswer, fields, *_listed(images, _ONE_IMAGE))

    def retrieve(
        self,
        target: Literal["image", "text"],
        *,
        text: str = "",
        image: Image | None = None,
        box: tuple[float, float, float, float] | None = None,
        k: int = 10,
        **filters: str | Sequence[str],
    ) -> RetrieveAnswer:
        """Ask which indexed images or sentences are closest.

        Args:
            target: what is wanted, images or sentences.
            text: a sentence to ask with.
            image: an image to ask with, instead of the sentence.
            box: x, y, width and height on the image, pixels; None: the whole image.
            k: hits at most.
            filters: `split`, `view`, `finding` (one or several each) and `exclude_patient`.
        """
        fields: dict[str, Any] = {"target": target, "k": str(k), **filters}
        if text:
            fields["text"] = text
        if box is not None:
            fields["box"] = json.dumps(list(box))
        return self._ask(
            "/v1/retrieve", RetrieveAnswer, fields, *([] if image is None else [image])
        )

    def model(self) -> ModelAnswer:
        """Ask which model answers."""
        return self._send("GET", "/v1/model", ModelAnswer)

    def _ask(
        self, route: str, kind: type[_Answer], fields: Mapping[str, Any], *images: Image
    ) -> _Answer:
        parts: list[Any] = [("image", ("image", _bytes_of(image))) for image in images]
        # A part without a file name keeps a form without an image multipart.
        parts = parts or [("", (None, b""))]
        return self._send("POST", route, kind, data=fields, files=parts)

    def _send(self, method: str, route: str, kind: type[_Answer], **body: Any) -> _Answer:
        end = time.monotonic() + self._patience_s
        while True:
            reply = self._http.ask(method, route, self._most_bytes, **body)
            wait = _wait_s(reply)
            if wait is None or time.monotonic() + wait > end:
                return _read(reply, kind)
            time.sleep(wait)


def _listed(given: Any, one: type | tuple[type, ...]) -> list[Any]:
    """Take one item for a list of it: a string is one sentence, never its letters."""
    return [given] if isinstance(given, one) else [*given]


def _classify_fields(findings: Findings | None, *, explain: bool) -> dict[str, Any]:
    fields = {"explain": str(explain).lower()}
    if findings is not None:
        listed = _listed(findings, (str, Mapping))
        fields["findings"] = json.dumps(
            [dict(item) if isinstance(item, Mapping) else item for item in listed]
        )
    return fields


class _Key(httpx.Auth):
    """Sends a key; that of a file is the one that stands there now."""

    def __init__(self, key: str | Path) -> None:
        self._file = key if isinstance(key, Path) else None
        self._key = read_keys(key)[0] if isinstance(key, Path) else key

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        if self._file is not None:
            with suppress(ConfigError):  # it is being written: the last one may still be good
                self._key = read_keys(self._file)[0]
        if self._key:
            request.headers["X-API-Key"] = self._key
        yield request


def _bytes_of(image: Image) -> bytes:
    if isinstance(image, bytes):
        return image
    try:
        return Path(image).read_bytes()
    except (OSError, ValueError) as error:
        raise ImageError("missing", "the image cannot be read; give a file") from error


def _wait_s(reply: Reply) -> float | None:
    """Seconds after which the service wants to be asked again; None: asking again is no use."""
    named = reply.headers.get("Retry-After", "")
    if reply.status not in _BUSY or not named.isdecimal():
        return None
    return max(float(named), _SHORTEST_WAIT_S)


def _read(reply: Reply, kind: type[_Answer]) -> _Answer:
    try:
        if reply.status == httpx.codes.OK:
            return kind.model_validate_json(reply.body)
        body = json.loads(reply.body)
        code, line = str(body["code"]), str(body["message"])
    except (ValueError, ValidationError, KeyError, TypeError, RecursionError) as error:
        to = reply.headers.get("Location")
        remedy = f"it leads to {to}, name that url" if to else "is the url that of medclip-dcl?"
        line = f"status {reply.status} without an answer of this service; {remedy}"
        raise ServiceError("no_answer", line) from error
    request = reply.headers.get("X-Request-ID", "")
    status = reply.status
    raise ServiceError(code, f"status {status}: {line} (request {request})", status)


def main(argv: Sequence[str] | None = None, prog: str = "python -m medclip_dcl.client") -> int:
    """Ask the service one question and print the answer; return 0 or the error's exit code.

    `prog` is what the help calls this command.
    """
    return answer_question(client_parser(prog).parse_args(argv))


def client_parser(prog: str, *, with_tables: bool = False) -> argparse.ArgumentParser:
    """Make the parser of a question to a service; the help calls the command `prog`.

    `with_tables`: whether the caller can write answers about images as a table.
    """
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--url", default="http://127.0.0.1:8000", help="address of the service")
    shared.add_argument("--key-file", type=Path, help="file with the API key")
    shared.add_argument(
        "--ca", type=Path, help="PEM file of the authorities that sign the other side's certificate"
    )
    parser = argparse.ArgumentParser(prog=prog)
    questions = parser.add_subparsers(dest="question", required=True)
    classify = questions.add_parser("classify", parents=[shared], help="which findings?")
    classify.add_argument("image", type=Path, nargs="+")
    classify.add_argument("--explain", action="store_true", help="with heatmaps")
    if with_tables:
        rows = "a row for each image, those of folders too, in place of JSON"
        classify.add_argument("--csv", type=Path, metavar="FILE", help=rows)
    ground = questions.add_parser("ground", parents=[shared], help="where is it seen?")
    ground.add_argument("image", type=Path)
    ground.add_argument("phrase", nargs="+")
    ground.add_argument("--threshold", type=float, help="score from which boxes are traced")
    embed = questions.add_parser("embed", parents=[shared], help="vectors of images or sentences")
    embed.add_argument("image", type=Path, nargs="*")
    embed.add_argument("--text", action="append", default=[], help="a sentence, not an image")
    embed.add_argument("--what", choices=["global", "regions"], default="global")
    embed.add_argument("--format", choices=["json", "base64"], default="json")
    retrieve = questions.add_parser("retrieve", parents=[shared], help="what is similar?")
    retrieve.add_argument("--target", choices=["image", "text"], required=True)
    query = retrieve.add_mutually_exclusive_group(required=True)
    query.add_argument("--text", default="", help="a sentence")
    query.add_argument("--image", type=Path)
    retrieve.add_argument("--box", type=float, nargs=4, metavar=("X", "Y", "WIDTH", "HEIGHT"))
    retrieve.add_argument("-k", type=int, default=10, help="hits at most")
    for name in ("split", "view", "finding"):
        retrieve.add_argument(f"--{name}", action="append", default=[])
    retrieve.add_argument("--exclude-patient", default="")
    return parser


def answer_question(arguments: argparse.Namespace) -> int:
    """Ask what parsed arguments ask, and print the answer; 0 or the error's exit code."""
    try:
        with Client(arguments.url, arguments.key_file or "", ca=arguments.ca) as client:
            reply: Schema | Sequence[Schema] = _question(client, arguments)
    except MedclipError as error:
        print(f"client: {error}", file=sys.stderr)
        return error.exit_code
    answers = [reply] if isinstance(reply, Schema) else reply
    printed = [answer.model_dump(mode="json") for answer in answers]
    print(json.dumps(printed if len(printed) > 1 else printed[0], indent=1, ensure_ascii=False))
    if any(OUT_OF_RANGE in _flags(answer) for answer in answers):
        print(f"client: warning: {OUT_OF_RANGE}: {OUT_OF_RANGE_NOTE}", file=sys.stderr)
    return 0


def _flags(answer: Schema) -> list[str]:
    if isinstance(answer, ClassifyAnswer | GroundAnswer):
        return answer.image.flags
    if isinstance(answer, EmbedAnswer):
        read = [image for image in answer.images if isinstance(image, ImageFacts)]
        return [flag for image in read for flag in image.flags]
    return []  # of /retrieve


def _question(client: Client, arguments: argparse.Namespace) -> Schema | Sequence[Schema]:
    if arguments.question == "classify":
        if len(arguments.image) == 1:
            return client.classify(arguments.image[0], explain=arguments.explain)
        return client.classify_all(arguments.image, explain=arguments.explain)
    if arguments.question == "ground":
        return client.ground(arguments.image, arguments.phrase, arguments.threshold)
    if arguments.question == "embed":
        return client.embed(
            arguments.image, texts=arguments.text, what=arguments.what, encoding=arguments.format
        )
    filters = {name: getattr(arguments, name) for name in ("split", "view", "finding")}
    if arguments.exclude_patient:
        filters["exclude_patient"] = arguments.exclude_patient
    return client.retrieve(
        arguments.target,
        text=arguments.text,
        image=arguments.image,
        box=tuple(arguments.box) if arguments.box else None,
        k=arguments.k,
        **filters,
    )


def trusted(ca: Path | None) -> ssl.SSLContext:
    """Trust the authorities of a PEM file.

    None: those that the variables SSL_CERT_FILE and SSL_CERT_DIR name, else certifi's. ConfigError
    where a file has none.
    """
    try:
        return ssl.create_default_context(cafile=str(ca)) if ca else httpx.create_ssl_context()
    except OSError as error:  # an SSLError is one
        name = ca or os.environ.get("SSL_CERT_FILE")
        raise ConfigError(f"ca {name} cannot be read as certificates; name a PEM file") from error


def unreachable(error: Exception, whom: str) -> ServiceError:
    """Say why someone gave no answer, and what to do: `certificate` or `unreachable`."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ServiceError(
                "certificate",
                f"{whom} shows a certificate that is not trusted (CERTIFICATE_VERIFY_FAILED: "
                f"{cause.verify_message}); name its authority's PEM file as `ca` or in the "
                "variable SSL_CERT_FILE, or use the host name that it holds",
            )
    why = (line for kind, line in _REMEDIES for cause in causes if isinstance(cause, kind))
    return ServiceError("unreachable", f"{whom} gave no answer: {next(why, 'is it up?')}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):  # of several addresses of a host
            for part in error.exceptions:
                yield from _causes(part)
        error = error.__cause__ or error.__context__


if __name__ == "__main__":
    sys.exit(main())
