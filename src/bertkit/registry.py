"""Registries of named objects, and the extensions that add to them.

The built-in extensions are in `bertkit.extensions`. Another package adds an extension by declaring
an entry point:

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
"""Entry point group in which other packages declare their extensions."""

BUILTIN = ("generation", "classic", "serving", "search", "export", "cleaning", "demo", "zero_shot",
           "transformers_pipelines")  # fmt: skip
"""Names of the extensions in `bertkit.extensions`."""


@dataclass(frozen=True)
class Extension:
    """Objects that an optional feature or another package adds to bertkit's registries.

    Each mapping contains import paths (`module:attribute`). An object is imported at its first use.

    Args:
        name: Name of the extension.
        families: `Family` objects, by the `model_type` of their config.json.
        formats: Subclasses of `ModelFormat`, by the format names of `bertkit.checkpoint.formats`.
        accelerators: Functions by the names `engine` and `embedder`, which return a faster
            implementation for a model, or None.
        tokenizers: Objects of type `TokenizerFormat`, by name: the `use` of a vocabulary to train.
        settings_readers: Functions that read additional settings from a model directory, by name.
        tasks: Subclasses of `Task`, by name.
        pipelines: Subclasses of `ModelPipeline`, or other classes with an `open` method like
            `ModelPipeline.open`, by name.
        objectives: Subclasses of `PretrainConfig`, by the `objective` of their run files.
        pretrainings: Objects of type `Pretraining` for models that are not Transformers, by the
            `family` of their run files.
        routes: Objects of type `bertkit.web.Route`, by URL path. A pipeline needs one only if its
            requests have a special format. Pipelines that define the types of their items get a
            route automatically.
        pages: Subclasses of `bertkit.web.Page`, by URL path.
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
    """Mapping from names to objects of the core and of extensions.

    Each object is imported when it is looked up.

    Args:
        kind: Name of the field of `Extension` that contains the objects of an extension.
        core: Import paths (`module:attribute`) of the core's objects, by name.
    """

    def __init__(self, kind: str, core: Mapping[str, str]) -> None:
        self.kind, self.core = kind, core

    @property
    def paths(self) -> dict[str, str]:
        """Import path (`module:attribute`) of each object, by name.

        Raises:
            ConfigError: If two objects have the same name, or an extension cannot be imported.
        """
        paths = dict(self.core)
        for extension in extensions():
            additions: Mapping[str, str] = getattr(extension, self.kind)
            for name, path in additions.items():
                if name in paths:
                    raise ConfigError(
                        f"extension {extension.name}: {path} has the same name {name!r} as "
                        f"{paths[name]} ({self.kind}); rename it, or uninstall the extension"
                    )
                paths[name] = path
        return paths

    def __getitem__(self, name: str) -> Any:
        return import_object(self.paths[name])

    def __contains__(self, name: object) -> bool:
        return name in self.paths

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)


def import_object(path: str) -> Any:
    """Import the object at an import path (`module:attribute`) and return it."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


@cache
def extensions() -> tuple[Extension, ...]:
    """Return the built-in extensions, followed by the extensions of installed packages.

    Raises:
        ConfigError: If the extension of an installed package cannot be imported.
    """
    builtin = [import_module(f"bertkit.extensions.{name}").EXTENSION for name in BUILTIN]
    installed = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            extension = point.load()
        except Exception as error:
            # Third-party code can raise any exception.
            raise ConfigError(
                f"extension {point.name}: cannot import {point.value} "
                f"({type(error).__name__}: {error}); repair or uninstall the package"
            ) from None
        if not isinstance(extension, Extension):
            raise ConfigError(
                f"extension {point.name}: {point.value} is not a bertkit.registry.Extension; "
                "repair or uninstall the package"
            )
        installed.append(extension)
    return (*builtin, *installed)
