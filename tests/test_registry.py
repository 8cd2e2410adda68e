"""Extensions that add families, tasks, and pipelines."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint

import pytest

from bertkit import cli, registry
from bertkit.errors import ConfigError
from bertkit.families import FAMILIES, Family
from bertkit.pipelines import PIPELINES, pipeline
from bertkit.registry import GROUP, Extension
from bertkit.tasks import TASKS, Task, find
from bertkit.tasks.classify import Classify
from bertkit.tasks.task import full_name

Install = Callable[[object], None]


class Stars(Classify):
    """Stars of reviews."""

    name = "ratings"


class Shout:
    """A pipeline that needs no model."""

    @classmethod
    def open(cls, model: str, **_: object) -> Shout:
        return cls()

    def __call__(self, text: str) -> str:
        return text.upper()


ADDED = Extension(
    "mine",
    families={"stars-bert": "bertkit.families.bert:BERT"},
    tasks={"ratings": f"{__name__}:Stars"},
    pipelines={"shout": f"{__name__}:Shout"},
)
RENAMED = Extension("renamed", tasks={"rate": f"{__name__}:Stars"})
TWICE = Extension("twice", tasks={"classify": f"{__name__}:Stars"})
BROKEN = 3


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Make a name of this module the entry point of an installed package."""

    def installed(name: object) -> None:
        point = EntryPoint("mine", str(name), GROUP)
        monkeypatch.setattr(registry, "entry_points", lambda group: [point])
        registry.extensions.cache_clear()

    yield installed
    monkeypatch.undo()
    registry.extensions.cache_clear()


def test_extension_adds_to_each_registry(install: Install) -> None:
    assert "shout" not in PIPELINES
    assert "ratings" not in TASKS
    install(f"{__name__}:ADDED")
    assert find("ratings") is Stars
    assert full_name(Stars) == "ratings"
    assert pipeline("shout", "any")("text") == "TEXT"
    assert FAMILIES["stars-bert"] is FAMILIES["bert"]
    assert list(FAMILIES)[-1] == "stars-bert"


def test_extension_task_is_a_command(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(f"{__name__}:ADDED")
    assert cli.run(["finetune", "ratings", "--help"]) == 0
    assert "Stars of reviews." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{__name__}:TWICE", "extension twice: .*:Stars has the same name 'classify'"),
        (f"{__name__}:BROKEN", "extension mine: .* is not a bertkit.registry.Extension"),
        (f"{__name__}:NOTHING", "extension mine: cannot import .*AttributeError"),
        ("no_such_package:EXTENSION", "extension mine: cannot import .*ModuleNotFoundError"),
    ],
)
def test_invalid_extension_is_reported(install: Install, name: str, message: str) -> None:
    install(name)
    with pytest.raises(ConfigError, match=message):
        list(TASKS)


def test_find_rejects_a_task_with_another_name(install: Install) -> None:
    install(f"{__name__}:RENAMED")
    with pytest.raises(ConfigError, match=r"task rate: .*:Stars has name = 'ratings'; set it to"):
        find("rate")


@pytest.mark.parametrize("name", FAMILIES)
def test_families_have_their_registered_name(name: str) -> None:
    family = FAMILIES[name]
    assert isinstance(family, Family)
    assert family.name == name


@pytest.mark.parametrize("name", TASKS)
def test_tasks_have_their_registered_name(name: str) -> None:
    assert issubclass(TASKS[name], Task)
    assert TASKS[name].name == name


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_accept_common_settings(name: str) -> None:
    parameters = inspect.signature(PIPELINES[name].open).parameters
    assert {"model", "precision", "device", "revision"} <= set(parameters)
