"""Extensions: optional features and installed packages that add to bertkit, by name.

bertkit's own are in `bertkit.extensions`. Another package declares one as an entry point:

    [project.entry-points."bertkit.extensions"]
    mine = "my_package:EXTENSION"
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from bertkit.errors import ConfigError

GROUP = "bertkit.extensions"
"""Group of the entry points of packages."""

OWN = ("generation", "classic", "serving", "search", "export", "cleaning", "demo")
"""Extensions that are part of bertkit, in `bertkit.extensions`."""


@dataclass(frozen=True)
class Extension:
    """A feature that adds to bertkit.

    Each addition is `module:attribute`, which is imported when it is first used.

    Args:
        name: Name of the extension.
        families: `Family` objects, by the `model_type` of their config.json.
        formats: Subclasses of `ModelFormat`, by the names in `bertkit.checkpoint.formats`, which
            lists the files of each format.
        accelerators: Functions that return a faster `engine` or `embedder` of a model, or None.
        tokenizers: Objects of type `TokenizerFormat`, by the `use` of their vocabularies.
        settings_readers: Functions that read further settings of a model directory, by name.
        tasks: Subclasses of `Task`, by name.
        pipelines: Subclasses of `ModelPipeline`, or other classes with its method `open`, by name.
        objectives: Subclasses of `PretrainConfig`, by the `objective` of their run files.
        pretrainings: Objects of type `Pretraining` for models that are not Transformers, by the
            `family` of their run files.
        routes: Objects of type `bertkit.web.Route`, by path. They are for pipelines whose requests
            have a special form; a pipeline that defines its types has a route without one.
        pages: Subclasses of `bertkit.web.Page`, by path.
    """

    name: str
    families: Mapping[str, str] = field(default_factory=dict)
    formats: Mapping[str, str] = field(default_factory=dict)
    accelerators: Mapping[str, str] = field(default_factory=dict)
    tokenizers: Mapping[str, str] = field(default_factory=dict)
    settings_readers: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[str, str] = field(default_factory=dict)
    pipelines: Mapping[str, str] = field(default_factory=dict)
    objectives: Mapping[str, str] = field(default_factory=dict)
    pretrainings: Mapping[str, str] = field(default_factory=dict)
    routes: Mapping[str, str] = field(default_factory=dict)
    pages: Mapping[str, str] = field(default_factory=dict)


class Registry(Mapping[str, Any]):
    """Objects of one kind by name: those of the core, then those that extensions add.

    Args:
        kind: Field of `Extension` with the additions.
        core: Places of the objects of the core, as in `Extension`.
    """

    def __init__(self, kind: str, core: Mapping[str, str]) -> None:
        self.kind, self.core = kind, core

    @property
    def places(self) -> dict[str, str]:
        """The place of each object, as `module:attribute`.

        Raises:
            ConfigError: If an extension has a name that another one has, or cannot be imported.
        """
        places = dict(self.core)
        for extension in extensions():
            additions: Mapping[str, str] = getattr(extension, self.kind)
            for name, place in additions.items():
                if name in places:
                    raise ConfigError(
                        f"extension {extension.name}: {place} has the name {name!r} of "
                        f"{places[name]} ({self.kind}); rename it, or uninstall the extension"
                    )
                places[name] = place
        return places

    def __getitem__(self, name: str) -> Any:
        return import_object(self.places[name])

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def import_object(place: str) -> Any:
    """Return the object at a place, which is `module:attribute`."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


@cache
def extensions() -> tuple[Extension, ...]:
    """Return bertkit's own extensions, then those of installed packages.

    Raises:
        ConfigError: If the extension of a package cannot be imported.
    """
    own = [import_module(f"bertkit.extensions.{name}").EXTENSION for name in OWN]
    others = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            extension = point.load()
        except Exception as error:  # other people's code may raise anything
            raise ConfigError(
                f"extension {point.name}: cannot import {point.value} "
                f"({type(error).__name__}: {error}); repair or uninstall the package"
            ) from None
        if not isinstance(extension, Extension):
            raise ConfigError(
                f"extension {point.name}: {point.value} is not a bertkit.registry.Extension; "
                "repair or uninstall the package"
            )
        others.append(extension)
    return (*own, *others)
