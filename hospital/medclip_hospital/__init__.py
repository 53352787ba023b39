"""medclip-dcl in a hospital: a gateway to a PACS, answers as DICOM objects, a DICOMweb source."""
