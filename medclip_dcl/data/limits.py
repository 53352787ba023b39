"""Limits of images: the settings, the reasons of a refusal, and what is refused unopened."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

from pydantic import ConfigDict, Field

from medclip_dcl.core.errors import ImageError
from medclip_dcl.core.settings import LOCAL, NO_EFFECT, Section

Filter = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]


@dataclass(frozen=True)
class Fit:
    """How the maker of a public checkpoint brings an image to a square, by Pillow's filters."""

    how: Literal["stretch", "crop", "pad"]
    """All of the image; the middle of it, its shorter side resized; all of it within black."""
    filter: Filter  # Pillow's, on 8-bit levels
    resized_px: Annotated[int, Field(ge=0, le=8192)] = 0
    """What that side of a crop becomes; 0: the square's."""
    scaled: bool = False
    """Whether levels of 8-bit pictures are spread over black to white, as those of other files are
    in any case; else they stay."""
    half_even: bool = False
    """Whether half a pixel of a crop's margin is rounded to the even one, as torchvision does, and
    not down, as transformers does."""
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class ImagesConfig(Section):
    """Decoding and preparing images (`prepare_images`, and the service)."""

    size_px: Annotated[int, Field(ge=32, le=8192)] = 512
    """Height and width of a prepared image, pixels; paper: 512."""
    voi: Literal["none", "dicom"] = "none"
    """Whether a DICOM VOI LUT or window is applied before scaling by minimum and maximum."""
    equalize: bool = False
    """Histogram equalisation, as MIMIC-CXR-JPG applied to its images."""
    fit: Fit | None = None
    """How an image becomes a square, as a public checkpoint's maker does it: `adopt` sets it, and
    `equalize` is then not read. Without, all of it is stretched, by this project's exact filter."""
    max_megapixels: Annotated[float, Field(gt=0)] = 40
    """Largest declared rows x columns, millions of pixels."""
    max_bytes: Annotated[int, Field(gt=0)] = 64 * 2**20
    """Largest file, bytes."""
    deadline_s: Annotated[float, Field(gt=0)] = 8
    """Seconds that one image may take to decode; its refusal then comes within 10."""
    memory_mb: Annotated[int, Field(gt=0)] = 1024
    """Memory that a decode worker may allocate, MiB."""
    reject_burned_in: bool = True
    """Whether an image is rejected whose BurnedInAnnotation is given and is not NO."""
    dask_scheduler: Annotated[str, NO_EFFECT, LOCAL] = ""
    """Address of a Dask scheduler, such as `tcp://head:8786`, whose workers decode; empty: here."""

    @property
    def max_pixels(self) -> int:
        """Largest declared rows x columns."""
        return int(self.max_megapixels * 1e6)

    def held_to(self, **limits: float) -> Self:
        """Return the same settings with decoding held to limits of whoever decodes, by name."""
        # The stricter of both: neither the model nor the service may loosen the other's.
        stricter = {name: min(getattr(self, name), limit) for name, limit in limits.items()}
        return self.model_copy(update=stricter)


REASONS: dict[str, str] = {  # reason code -> what it means
    "missing": "there is no regular file to read",
    "empty": "the file holds no bytes",
    "too_many_bytes": "the file is larger than images.max_bytes",
    "unknown_format": "the bytes are neither DICOM with its preamble, nor JPEG, nor PNG",
    "unreadable": "the header cannot be parsed",
    "too_many_elements": "the DICOM data set has more elements than an image needs",
    "transfer_syntax": "the DICOM transfer syntax is not one of those that are decoded",
    "not_single_frame": "the DICOM file holds several frames",
    "not_greyscale": "the DICOM file holds colour or palette indices",
    "bad_tags": "a DICOM tag that describes the pixels is missing or impossible",
    "too_many_pixels": "rows x columns exceed images.max_megapixels",
    "no_pixel_data": "the DICOM file holds no pixels",
    "truncated": "fewer bytes than the declared size needs",
    "size_mismatch": "the compressed stream or the pixel bytes disagree with the declared size",
    "corrupt": "the decoder refused the pixels",
    "bad_intensities": "the modality lookup table gives no intensity",
    "burned_in": "BurnedInAnnotation says that text is part of the picture",
    "deadline": "decoding took longer than images.deadline_s",
    "memory": "decoding asked for more than images.memory_mb",
    "worker_died": "the decode worker died on this image",
    "constant": "all pixels are equal (refused by prepare_images alone)",
}

PREAMBLE = 132  # bytes that tell the format: of DICOM the preamble, of JPEG and PNG a few of them

# By their first bytes: an ending says what somebody named a file, not what it is.
_RASTERS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")


def is_dicom(data: bytes) -> bool:
    """Whether `DICM` follows a preamble of 128 bytes; `data`: the first 132 bytes, or more.

    A bare data set without it is not accepted: nothing tells it from any other bytes.

    Source: DICOM PS3.10, 7.1.
    """
    return data[PREAMBLE - 4 : PREAMBLE] == b"DICM"


def require_image(head: bytes, size: int, max_bytes: int) -> None:
    """Refuse a file by its size, or by its first `PREAMBLE` bytes; ImageError."""
    if size == 0:
        raise ImageError("empty", "the file holds no bytes")
    if size > max_bytes:
        raise ImageError("too_many_bytes", f"{size} bytes exceed images.max_bytes, {max_bytes}")
    if not is_dicom(head) and not head.startswith(_RASTERS):
        raise ImageError("unknown_format", "the first bytes are not those of DICOM, JPEG or PNG")
