"""Names are paths: `find("models", "mcar/tiny")` is `diagonal.models.mcar.VARIANTS["tiny"]`.

Nothing registers itself: a new model is one new file, and its variants are found by looking. `find` imports the family
that is named and no other, so that one that cannot be imported, as for lack of an optional package, breaks no other.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

HF = "hf:"  # before the folder or the hub id of a model of transformers, which has no name here


def families(package: str) -> list[str]:
    """Families of diagonal.<package>: its modules that offer variants; those that cannot be imported are left out."""
    left_out = broken(package)
    return [_join(one, "") for one in _modules(package) if one not in left_out and _variants(package, one)]


def broken(package: str) -> dict[str, str]:
    """Modules of diagonal.<package> that cannot be imported, and why."""
    reasons = {}
    for family in _modules(package):
        try:
            _variants(package, family)
        except Exception as error:  # whatever a module does when it is imported
            reasons[family] = f"{type(error).__name__}: {error}"
    return reasons


def listing(package: str) -> list[str]:
    """All names that `find` knows, family by family, in the order the files give."""
    return [_join(family, variant) for family in families(package) for variant in _variants(package, family)]


def find(package: str, name: str) -> Any:
    """The variant called `family/variant`."""
    family, _, variant = name.partition("/")
    if family.replace("-", "_") not in _modules(package) or not _variants(package, family):
        raise ValueError(f"nothing is called {name!r} in {package}; known: {', '.join(listing(package))}")
    variants = _variants(package, family)
    if variant not in variants:
        known = ", ".join(_join(family, one) for one in variants)
        raise ValueError(f"{family!r} has no variant {variant!r}; known: {known}")
    return variants[variant]


def _join(family: str, variant: str) -> str:
    """A name as it is written everywhere: a family's plain name is its variant called ''."""
    name = family.replace("_", "-")
    return f"{name}/{variant}" if variant else name


def _modules(package: str) -> list[str]:
    """Names of files: there an underscore stands where a name has a dash."""
    path = importlib.import_module(f"diagonal.{package}").__path__
    return sorted(module.name for module in pkgutil.iter_modules(path))


def _variants(package: str, family: str) -> dict[str, Any]:
    module = importlib.import_module(f"diagonal.{package}.{family.replace('-', '_')}")
    variants: dict[str, Any] = vars(module).get("VARIANTS", {})
    return variants
