"""What a decode worker is held to, as plain values it can be sent."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The part of `ImagesConfig` that a decode worker obeys.

    Attributes:
        voi: whether a DICOM VOI table or window is applied.
        reject_burned_in: whether BurnedInAnnotation YES refuses the film.
        max_pixels: largest rows x columns.
        max_bytes: largest file, and largest inflated data set, bytes.
        deadline_s: seconds that one image may take.
        memory_bytes: memory that the worker may allocate beyond its own code.
    """

    voi: bool
    reject_burned_in: bool
    max_pixels: int
    max_bytes: int
    deadline_s: float
    memory_bytes: int
