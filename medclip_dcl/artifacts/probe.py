"""Probe: what an image-only model has learned, by share of labels, and a map of its features."""

import pyarrow as pa

from medclip_dcl.artifacts.frame import Kind
from medclip_dcl.artifacts.tables import Column, TableFormat

KIND = Kind("probe", 1, "probe_images")

PROBES = TableFormat(
    "probes.parquet",
    (
        Column("encoder", pa.string(), "trained, or untrained: the same before its first step"),
        Column("fraction", pa.float64(), "share of the labels that the probe was given"),
        Column("draw", pa.int32(), "which random draw of them"),
        Column("labels", pa.int64(), "how many labels that is"),
        Column("penalty", pa.float64(), "L2 penalty that the validation images chose"),
        Column("converged", pa.bool_(), "whether the fit ended by itself"),
        Column("validation_accuracy", pa.float64(), "mean recall on the validation images"),
        Column("accuracy", pa.float64(), "mean recall over all classes, on the test images"),
        Column("accuracy_whole", pa.float64(), "the same over classes that were not thinned"),
        Column("accuracy_thinned", pa.float64(), "the same over thinned classes"),
        Column("recalls", pa.list_(pa.float64()), "recall of each class, by label"),
    ),
)
"""One row per encoder, fraction and draw."""

MAP = TableFormat(
    "map.parquet",
    (
        Column("image_id", pa.string(), "id of the test image"),
        Column("label", pa.int64(), "its class"),
        Column("x", pa.float64(), "place in the t-SNE map of the trained encoder's features"),
        Column("y", pa.float64(), "place in the t-SNE map"),
    ),
)
"""One row per mapped test image."""
