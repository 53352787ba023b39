"""The JSON schema of a config, by which an editor completes and checks its YAML.

    medclip schema > configs/schema.json

`make` writes that file, and the first line of every config names it. A config of your own anywhere
else names its copy the same way: `# yaml-language-server: $schema=schema.json`. What a schema
cannot say, such as which settings exclude each other, `medclip run` still checks.
"""

import json
import sys
from typing import Any

from .cli import tool_main
from .config import Config
from .stages import STAGES


def config_schema() -> dict[str, Any]:
    """Make the schema of a config's file, with the meaning and the default of every setting."""
    tree = Config.model_json_schema()
    tree["title"] = "medclip-dcl config"
    tree["required"].remove("work")  # by default that of the file's name
    own = tree["properties"]
    own["jobs"]["items"] = {"enum": list(STAGES)}
    base = {"type": "string", "description": "Config that this one changes section by section."}
    tree["properties"] = {"base": base, **own}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **tree}


def command() -> int:
    """Print the schema."""
    print(json.dumps(config_schema(), indent=1, ensure_ascii=False))
    return 0


main = tool_main("schema", command)

if __name__ == "__main__":
    sys.exit(main())
