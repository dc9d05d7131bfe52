"""The files of a model directory: none from outside it, none too large to be what it says."""

import json
from pathlib import Path

from specialist.models.errors import ModelRefused
from specialist.models.fields import Fields

MAX_JSON = 256 << 20
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class Directory:
    """A model's folder. In a hub cache the files are links into the `blobs` folder beside the snapshots."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        root = path.resolve()
        self.homes = [root, root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [root]

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def file(self, name: str) -> Path:
        """A regular file that lies in the folder, or in its hub cache."""
        if not name or name in (".", "..") or "\0" in name or Path(name).name != name or "\\" in name:
            raise ModelRefused(f"{self.name}: {name!r:.120} must be the plain name of a file in the model's directory")
        path = self.path / name
        if not path.exists():
            raise ModelRefused(f"{self.name}: {name} is missing: fetch the whole directory again")
        if not any(path.resolve().is_relative_to(home) for home in self.homes):
            raise ModelRefused(f"{self.name}: {name} is a link out of the model's directory: copy the file into it")
        if not path.is_file():
            raise ModelRefused(f"{self.name}: {name} must be a regular file")
        return path

    def json(self, name: str) -> Fields:
        path = self.file(name)
        if path.stat().st_size > MAX_JSON:
            raise ModelRefused(f"{self.name}: {name} has more than {MAX_JSON:,} bytes")
        try:
            content = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise ModelRefused(f"{self.name}: {name} is not valid JSON ({error}): fetch it again") from None
        if not isinstance(content, dict):
            raise ModelRefused(f"{self.name}: {name} must hold a JSON object")
        return Fields(f"{self.name}/{name}", content)

    def maybe_json(self, name: str) -> Fields:
        """Empty where there is no such file."""
        return self.json(name) if self.has(name) else Fields(f"{self.name}/{name}", {})

    def shards(self) -> list[str]:
        """The files that hold the weights, in order."""
        if self.has(SINGLE):
            return [SINGLE]
        if self.has(INDEX):
            return sorted(set(self.weight_map().values()))
        names = sorted(path.name for path in self.path.glob("*.safetensors"))
        if names:
            return names
        pickles = sorted(path.name for path in self.path.iterdir() if path.suffix in PICKLES)
        if pickles:
            raise ModelRefused(
                f"{self.name}: {pickles[0]} is a pickle, which can run code when it is read: convert it to safetensors"
            )
        raise ModelRefused(f"{self.name}: no *.safetensors file: give a directory with the model's weights")

    def weight_map(self) -> dict[str, str]:
        """By the index: in which file each tensor lies."""
        table = self.json(INDEX).table("weight_map")
        if not table.values:
            raise table.wrong("weight_map", "is empty: fetch the index again")
        return {name: table.text(name) for name in table.values}
