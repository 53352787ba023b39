"""Put a published model on a model hub; no sentence and no patient goes with it.

What leaves is a copy of the model: weights, configuration, tokenizer and its cards
(`write_cards`), without the hashes of training patients and without folder names. The
repository is private unless `--public` is given. `--dry-run` lists the files and sends
nothing. The token is that of `hf auth login`, or `HF_TOKEN`; `HF_ENDPOINT` names another hub.
"""

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
)

from medclip_dcl.core.artifact import HEADER, Artifact, open_artifact
from medclip_dcl.core.errors import ConfigError, HubError
from medclip_dcl.core.files import disk_faults_named
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.inference import model_package

from .cards import cards_of
from .cli import ConfigFile, Overrides, config_of, tool_main
from .redacted_copy import export_model


def push(copy: Artifact, repo: str, *, private: bool) -> str:
    """Send an export to the hub, into a repository that may be new; gives the commit's address.

    Raises:
        ConfigError: the name is malformed, there is no token, the hub is switched off, or a
            private repository was meant and a public one is there.
        HubError: the hub cannot be reached, or refuses.
    """
    api = HfApi()
    operations = [
        CommitOperationAdd(path_in_repo=name, path_or_fileobj=str(copy.path / name))
        for name in sorted([*copy.files, HEADER])
    ]
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        if private and not api.model_info(repo).private:
            raise ConfigError(f"--repo {repo!r} exists and is public; give --public to mean that")
        commit = api.create_commit(
            repo, operations, commit_message=f"Model with digest {copy.digest[:12]}"
        )
    except (HFValidationError, LocalTokenNotFoundError) as error:
        raise ConfigError(
            f"--repo {repo!r} is not an OWNER/NAME, or there is no token; `hf auth login` keeps one"
        ) from error
    except ConfigError:
        raise
    except OfflineModeIsEnabled as error:
        raise ConfigError("HF_HUB_OFFLINE is set; unset it for this command") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        raise HubError(f"the hub refused with status {status}; may you write there?") from error
    except Exception as error:  # the client's HTTP library has errors of its own
        raise HubError("the hub cannot be reached; is the network up?") from error
    return str(commit.commit_url)


def command(
    config: ConfigFile,
    repo: Annotated[str, typer.Option(metavar="OWNER/NAME")],
    overrides: Overrides = None,
    public: Annotated[bool, typer.Option("--public", help="A new repository is public.")] = False,
    allow_vocabulary: Annotated[
        bool, typer.Option("--allow-vocabulary", help="Word pieces learned from reports may go.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the files, send nothing.")
    ] = False,
) -> int:
    """Copy a run's model and send the copy."""
    loaded = config_of(config, overrides)
    work = resolve_path(loaded.work, loaded.work)
    model = open_artifact(model_package.ARTIFACT.at(work), model_package.ARTIFACT, verify=False)
    temporary = Path(tempfile.gettempdir())
    with disk_faults_named(temporary), tempfile.TemporaryDirectory() as folder:
        copy = export_model(
            model.path,
            cards_of(work, model),
            Path(folder) / "model",
            allow_vocabulary=allow_vocabulary,
        )
        for name in sorted([*copy.files, HEADER]):
            print(f"{(copy.path / name).stat().st_size:12}  {name}")
        address = "nothing was sent"
        if not dry_run:
            address = push(copy, repo, private=not public)
        print(address)
    return 0


main = tool_main("push_model", command)

if __name__ == "__main__":
    sys.exit(main())
