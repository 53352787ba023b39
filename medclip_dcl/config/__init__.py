"""One schema for every setting, and the only place where defaults live."""

from medclip_dcl.config.load import load_config, resolve_path
from medclip_dcl.config.schema import Config
from medclip_dcl.config.section import Section

__all__ = ["Config", "Section", "load_config", "resolve_path"]
