"""The client of the service alone: `Client` and its errors, without torch.

The four modules are those of `medclip_dcl`, linked here in the checkout and copied into the wheel.
"""

from .client import Client
from .core.errors import ImageError, MedclipError, ServiceError

__all__ = ["Client", "ImageError", "MedclipError", "ServiceError"]
