"""Why an image is refused: one code and one line each."""

REASONS: dict[str, str] = {
    "missing": "there is no regular file to read",
    "empty": "the file holds no bytes",
    "too_many_bytes": "the file is larger than images.max_bytes",
    "unknown_format": "the bytes are neither DICOM with its preamble, nor JPEG, nor PNG",
    "unreadable": "the header cannot be parsed",
    "too_many_elements": "the DICOM data set has more elements than a film needs",
    "transfer_syntax": "the DICOM transfer syntax is not one of those that are decoded",
    "not_single_frame": "the DICOM file holds several frames",
    "not_greyscale": "the DICOM file holds colour or palette indices",
    "bad_tags": "a DICOM tag that describes the pixels is missing or impossible",
    "too_many_pixels": "rows x columns exceed images.max_megapixels",
    "no_pixel_data": "the DICOM file holds no pixels",
    "truncated": "fewer bytes than the declared size needs",
    "size_mismatch": "the compressed stream or the pixel bytes disagree with the declared size",
    "corrupt": "the decoder refused the pixels",
    "bad_intensities": "rescale, lookup table or window give no finite intensity",
    "burned_in": "BurnedInAnnotation says that text is part of the picture",
    "deadline": "decoding took longer than images.deadline_s",
    "memory": "decoding asked for more than images.memory_mb",
    "worker_died": "the decode worker died on this image",
    "constant": "all pixels are equal (refused by prepare_images alone)",
}
"""Reason code -> what it means."""
