"""Finding the application that ``MODULE:APP`` names, and saying clearly why it is not there."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.core.errors import ConfigError, PenstockError, nearest

if TYPE_CHECKING:
    from penstock.app import App

__all__ = ["LoadError", "load_app"]

_OURS = str(Path(__file__).parents[1])


class LoadError(ConfigError):
    """The application that was named cannot be had."""

    code = "app"


def load_app(spec: str, *, cwd: Path | None = None) -> App:
    """The `App` that ``spec`` names: ``module:attribute``, or a module that holds exactly one.

    Modules are looked for in the current folder first, as ``python -m`` does. Raises
    `LoadError`; an error inside the module comes with the lines of it that led there.
    """
    from penstock.app import App

    module_name, colon, attribute = spec.partition(":")
    folder = Path.cwd() if cwd is None else cwd
    if module_name.endswith(".py") or not _is_dotted(module_name):
        raise _not_a_module(module_name, attribute)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    module = _imported(module_name, folder)
    if not colon:
        only: App = _only_app(module, App)
        return only
    found = _attribute(module, attribute, App)
    if not isinstance(found, App):
        raise LoadError(
            f"{spec!r} is of type {type(found).__name__}, not a penstock.App",
            remedy=_apps_hint(module, App),
            code="app.kind",
        )
    return found


def _imported(name: str, folder: Path) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise _no_module(name, folder) from error
        raise _failed_inside(name, error) from error
    except SystemExit as error:
        raise LoadError(
            f"the module {name!r} ended the process while it was imported",
            remedy='put what starts things under `if __name__ == "__main__":`.',
            code="app.import",
        ) from error
    except Exception as error:
        raise _failed_inside(name, error) from error


def _no_module(name: str, folder: Path) -> LoadError:
    parent, _, last = name.rpartition(".")
    place = folder.joinpath(*parent.split(".")) if parent else folder
    try:
        entries = sorted(place.iterdir())
    except OSError:
        entries = []
    known = [e.stem for e in entries if e.suffix == ".py" or (e / "__init__.py").is_file()]
    near = nearest(last, known)
    remedy = (
        f"did you mean {f'{parent}.{near}' if parent else near!r}?"
        if near
        else ("run it in the folder that holds the module, or install the package.")
    )
    return LoadError(f"no module {name!r} in {folder}", remedy=remedy, code="app.module")


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _not_a_module(name: str, attribute: str) -> LoadError:
    plain = name.removesuffix(".py").strip("./").replace(os.sep, ".")
    remedy = "write it like shop:app."
    if _is_dotted(plain):
        remedy = f"did you mean {plain + (f':{attribute}' if attribute else '')!r}?"
    return LoadError(f"{name!r} is not the name of a module", remedy=remedy, code="app.module")


def _failed_inside(name: str, error: Exception) -> LoadError:
    """The error with only the frames of the user's own code: ours and importlib's teach nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "importlib" not in f.filename and not f.filename.startswith(_OURS)]
    said = traceback.format_exception_only(error)
    remedy = "correct the line that is shown last."
    if isinstance(error, PenstockError):
        said, remedy = [error.message], error.remedy
    return LoadError(
        f"the module {name!r} cannot be imported:\n"
        + "".join([*traceback.format_list(own), *said]).rstrip(),
        remedy=remedy,
        code="app.import",
    )


def _attribute(module: ModuleType, path: str, kind: type[Any]) -> Any:
    found: Any = module
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            near = nearest(name, [n for n in dir(found) if not n.startswith("_")])
            raise LoadError(
                f"the module {module.__name__!r} has no {path!r}",
                remedy=f"did you mean {near!r}?" if near else _apps_hint(module, kind),
                code="app.attribute",
            ) from None
    return found


def _only_app(module: ModuleType, kind: type[Any]) -> Any:
    apps = _apps(module, kind)
    different = {id(app): app for app in apps.values()}
    if len(different) == 1:
        return next(iter(apps.values()))
    raise LoadError(
        f"the module {module.__name__!r} holds {len(different) or 'no'} applications",
        remedy=_apps_hint(module, kind),
        code="app.attribute",
    )


def _apps(module: ModuleType, kind: type[Any]) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if isinstance(value, kind)}


def _apps_hint(module: ModuleType, kind: type[Any]) -> str:
    names = [f"{module.__name__}:{name}" for name in _apps(module, kind)]
    if not names:
        return 'declare one: app = penstock.App("name")'
    return f"it has {' and '.join(names)}."
