"""Prepared images: square 8-bit grey films in shards that are read by memory map."""

import pyarrow as pa

from medclip_dcl.artifacts.frame import Kind
from medclip_dcl.artifacts.tables import Column

KIND = Kind("prepared", 1, "prepare_images")

COLUMNS = (
    Column("image_id", pa.string(), "id of the film"),
    Column("pixels", pa.large_binary(), "size x size bytes, row by row; 0 black, 255 white"),
    Column("height_px", pa.int32(), "height of the original film, pixels"),
    Column("width_px", pa.int32(), "width of the original film, pixels"),
)
"""Columns of every shard, an uncompressed Arrow IPC file `shard-00000.arrow`.

The original is stretched onto the square, so x_prepared = x * size / width_px and
y_prepared = y * size / height_px, in pixels.
"""
