"""The rules of the house, checked on the source: who imports whom, how long things get, what is never written."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import diagonal

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "diagonal"
FILES = sorted(SOURCE.rglob("*.py"))
MODULES = {path: ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__") for path in FILES}

# The rooms, lowest first: each imports from those before it and from itself, and from no other.
ROOMS = (
    "planning",
    "catalog",
    "media",
    "engine",
    "models",
    "tokenizers",
    "checkpoints",
    "worlds",
    "networks",
    "text",
    "generation",
    "evaluation",
    "training",
    "recipes",
    "server",
    "scale",
    "cli",
)
WITHOUT_TORCH = ("planning", "media", "catalog.names", "worlds", "cli")


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = node.module == "diagonal"
            yield from (f"diagonal.{alias.name}" for alias in node.names) if whole else [node.module]


def _top_level_imports(path: Path) -> Iterator[str]:
    for node in _tree(path).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _imports(node)


def test_nothing_but_rooms_lies_at_the_root() -> None:
    assert {path.name for path in SOURCE.glob("*") if path.is_file()} == {"__init__.py", "__main__.py", "py.typed"}
    assert {path.parent.name for path in SOURCE.glob("*/__init__.py")} == set(ROOMS)


@pytest.mark.parametrize("path", [p for p in FILES if p.parent != SOURCE], ids=MODULES.get)
def test_imports_point_downwards(path: Path) -> None:
    room = MODULES[path].partition(".")[0]
    for name in _imports(_tree(path)):
        if name.startswith("diagonal."):
            other = name.split(".")[1]
            assert other in ROOMS, f"{MODULES[path]} imports {name}: import names from where they are defined"
            assert ROOMS.index(other) <= ROOMS.index(room), f"{MODULES[path]} imports {name}, which lies above {room}"


@pytest.mark.parametrize("path", [p for p in FILES if MODULES[p].startswith(WITHOUT_TORCH)], ids=MODULES.get)
def test_the_core_and_the_front_need_no_torch(path: Path) -> None:
    assert not [name for name in _top_level_imports(path) if name.split(".")[0] in ("torch", "diffusers")]


def test_losses_see_tensors_and_never_modules() -> None:
    path = SOURCE / "training" / "latents" / "losses.py"
    assert not [name for name in _imports(_tree(path)) if name.startswith("diagonal")]
    assert not re.search(r"\bnn\.Module\b|\bModule\b", path.read_text())


def _functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in FILES:
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.FunctionDef):
                yield f"{MODULES[path]}.{node.name}", node


def _lines(node: ast.FunctionDef) -> int:
    """Lines of code: the docstring explains, it does not count."""
    doc = node.body[0]
    documented = isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant)
    start = (doc.end_lineno if documented else node.lineno) or node.lineno
    return (node.end_lineno or start) - start


def test_files_and_functions_stay_small() -> None:
    long_files = {MODULES[path]: n for path in FILES if (n := len(path.read_text().splitlines())) > 400}
    assert not long_files
    lengths = {name: _lines(node) for name, node in _functions()}
    assert not {name: n for name, n in lengths.items() if n > 80}
    assert statistics.median(lengths.values()) < 10
    assert sorted(lengths.values())[int(0.95 * len(lengths))] < 50


def test_functions_take_at_most_six_parameters() -> None:
    """But for commands, whose parameters are their options, and for Triton kernels, which take no objects."""
    for name, node in _functions():
        if any(ast.unparse(decorator) == "triton.jit" for decorator in node.decorator_list):
            continue
        own = [arg.arg for arg in node.args.args + node.args.kwonlyargs if arg.arg not in ("self", "cls")]
        assert len(own) <= 6 or name.startswith("cli."), f"{name} takes {own}"


def test_public_things_say_what_they_are_for() -> None:
    for path in FILES:
        tree = _tree(path)
        assert ast.get_docstring(tree), f"{MODULES[path]} has no docstring"
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{MODULES[path]}.{node.name} has no docstring"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"\bhasattr\(", "probing: say what a thing is by its type"),
        (r"\bgetattr\([^()]*,[^()]*,", "a default for a missing attribute hides mistakes"),
        (r"\*\*kwargs", "pass-through arguments hide what a function takes"),
        (r"(?<![\w.])print\(", "the library does not print"),
        (r"\bTODO\b|\bFIXME\b|NotImplementedError", "unfinished work"),
        (r"torch\.load\((?!.*weights_only=True)", "loading must not run code"),
    ],
)
def test_what_is_never_written(pattern: str, why: str) -> None:
    found = [
        f"{MODULES[path]}:{number}"
        for path in FILES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert not found, f"{found}: {why}"


def test_public_names_are_exported_and_exist() -> None:
    assert sorted(diagonal.__all__) == diagonal.__all__
    assert set(diagonal.__all__) == set(diagonal._HOMES)
    for name in diagonal.__all__:
        assert vars(sys.modules["diagonal"]).get(name) or diagonal.__getattr__(name)
    with pytest.raises(AttributeError, match="nonsense"):
        diagonal.__getattr__("nonsense")


def test_the_changelog_knows_this_version() -> None:
    assert f"## [{diagonal.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_models_and_engine_import_with_torch_numpy_and_safetensors_alone() -> None:
    """GPU machines often have no video or diffusion packages; decoding must work there."""
    code = """
import sys
for name in ("diffusers", "av", "PIL", "typer", "rich", "huggingface_hub", "transformers", "yaml"):
    sys.modules[name] = None
import diagonal.engine.tokens.decode, diagonal.models.mcar, diagonal.generation.world, diagonal.checkpoints
import diagonal.models.wham, diagonal.tokenizers.wham, diagonal.worlds.vpt, diagonal.worlds.xbox
import diagonal.tokenizers.wan_vae, diagonal.tokenizers.taehv, diagonal.text.encoders, diagonal.text.umt5
import diagonal.models.wan, diagonal.engine.chunks.denoise, diagonal.engine.chunks.bidirectional
import diagonal.engine.chunks.masks, diagonal.planning.presets, diagonal.checkpoints.lora, diagonal.generation.video
import diagonal.training.latents.pretraining, diagonal.training.latents.distill, diagonal.training.parallel
import diagonal.training.latents.distillation
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
