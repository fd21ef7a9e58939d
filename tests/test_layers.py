"""The layers of the architecture: a module imports only from layers below its own."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kvcodec"
LAYERS = [  # highest first; packages of one layer do not know each other
    {"cli", "adapters"},
    {"bulk", "bench", "report"},
    {"store"},
    {"attention"},
    {"measure", "dumps", "dictionary"},
    {"codecs", "log"},
    {"kernels", "flash"},
    {"spec"},
    {"product_spec", "trellis_spec"},
    {"shaped_spec"},
    {"sparse_spec"},
    {"layout", "errors"},
]
ALONE = {"layout", "errors", "spec", "sparse_spec", "shaped_spec", "product_spec", "trellis_spec"}
MODULES = sorted(p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE or p.stem in ALONE)


def layer_of(package: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if package in names)


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found |= {f"{node.module}.{a.name}" for a in node.names if node.module == "kvcodec"}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
    return found


def own_packages(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(path) if name.startswith("kvcodec.")} - {"_version"}


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_from_layers_below(path):
    own = package_of(path)
    if own == "cli" and path.name == "__init__.py":
        return
    for other in own_packages(path) - {own}:
        assert layer_of(other) > layer_of(own), f"{path} imports kvcodec.{other}"


@pytest.mark.parametrize("path", sorted((PACKAGE / "kernels").glob("*.py")), ids=lambda p: p.name)
def test_a_kernel_file_imports_only_numpy_and_its_neighbours(path):
    if path.name.startswith("_"):  # what kernels are written in: numba, llvmlite
        return
    outside = {name for name in imports(path) if not name.startswith("kvcodec.kernels") and name != "kvcodec"}
    assert outside <= {"numpy", "numpy.typing", "typing", "__future__"}, outside


def test_numba_is_imported_by_kernels_and_their_bench_alone():
    users = {
        p.relative_to(PACKAGE).parts[0]
        for p in PACKAGE.rglob("*.py")
        if any(n.split(".")[0] == "numba" for n in imports(p))
    }
    assert users <= {"kernels", "bench"}


def test_the_package_is_light_to_import():
    code = "import sys, time; t = time.time(); import kvcodec; print(time.time() - t, 'numba' in sys.modules)"
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(5)
    ]
    assert {numba for _, numba in runs} == {"False"}
    assert min(float(seconds) for seconds, _ in runs) < 0.2


def test_every_public_name_is_there():
    import kvcodec

    for name in kvcodec.__all__:
        assert getattr(kvcodec, name) is not None
    assert set(dir(kvcodec)) == set(kvcodec.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kvcodec.nothing
