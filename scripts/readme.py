"""Writes the generated parts of README.md: commands, presets, families, schemes, and the tree of
files.

    python scripts/readme.py           # rewrite them
    python scripts/readme.py --check   # exit 1 if they are not what the code says

Each part lies between `<!-- NAME -->` and `<!-- /NAME -->`.
"""

import ast
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("flax_pos", "configs", "benchmarks", "scripts")


def tree() -> str:
    """One line for each file: what the first line of its docstring, or of its comment, says."""
    lines = []
    for top in ("train_toy.py", *FOLDERS):
        lines += _branch(ROOT / top, 0)
    return "```\n" + "\n".join(lines) + "\n```"


def _branch(path: Path, depth: int) -> list[str]:
    indent = "  " * depth
    if path.is_file():
        return [_line(indent + path.name, _first_line(path))]
    init = path / "__init__.py"
    lines = [_line(f"{indent}{path.name}/", _first_line(init) if init.exists() else "")]
    inside = sorted(path.iterdir(), key=lambda p: (p.is_dir(), p.name))
    for child in inside:
        hidden = child.name.startswith((".", "__")) or child.suffix in (".pyc", ".typed")
        if not hidden:
            lines += _branch(child, depth + 1)
    return lines


def _line(name: str, text: str) -> str:
    return f"{name:34s} {text}".rstrip()


def _first_line(path: Path) -> str:
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        return text.split("\n\n")[0].replace("\n", " ")
    comments = [line[1:].strip() for line in path.read_text().splitlines() if line[:1] == "#"]
    text = next((c for c in comments if c and not c.startswith(("!", "python", "make"))), "")
    return text


def schemes() -> str:
    """The table that `flax-pos schemes --markdown` prints."""
    from flax_pos.lab.commands import markdown_schemes, scheme_rows

    return markdown_schemes(scheme_rows())


def commands() -> str:
    """What `flax-pos --help` lists."""
    from flax_pos.cli import COMMANDS

    lines = [f"flax-pos {name:<10} # {text}" for name, text in COMMANDS.items()]
    return "```\n" + "\n".join(lines) + "\n```"


def presets() -> str:
    """The head of each file in `configs/`: its command, what it is, its cost."""
    rows = ["| command | what | cost |", "| --- | --- | --- |"]
    for path in sorted((ROOT / "configs").glob("*.toml")):
        head = path.read_text().split("\n\n")[0].splitlines()
        parts = " ".join(line.removeprefix("#").strip() or "\n" for line in head).split(" \n ")
        command, what, rest = parts
        cost = rest.split("Expect:")[0].removeprefix("Cost:").strip()
        rows.append(f"| `{command}` | {what} | {cost} |")
    return "\n".join(rows)


def families() -> str:
    """Every `model_type` that can be loaded, whether from GGUF files too, and what checks it."""
    from flax_pos.interop.families import FAMILIES
    from flax_pos.interop.gguf_architectures import ARCHITECTURES

    golden: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests" / "golden").glob("*/*/config.json")):
        kind = json.loads(path.read_text())["model_type"]
        golden.setdefault(kind, []).append(f"`{path.parent.name}`")
    in_gguf = {architecture.model_type for architecture in ARCHITECTURES.values()}
    rows = ["| `model_type` | GGUF | tiny models in `tests/golden` |", "| --- | --- | --- |"]
    for names in sorted({family.types[0]: family.types for family in FAMILIES}.values()):
        also = "yes" if in_gguf.intersection(names) else ""
        checked = [model for name in names for model in golden.get(name, [])]
        rows.append(f"| `{names[0]}` | {also} | {', '.join(checked)} |")
    return "\n".join(rows)


PARTS = {
    "commands": commands,
    "presets": presets,
    "families": families,
    "schemes": schemes,
    "tree": tree,
}


def main() -> int:
    readme = ROOT / "README.md"
    old = new = readme.read_text()
    for name, make in PARTS.items():
        part = f"<!-- {name} -->\n{make()}\n<!-- /{name} -->"
        pattern = re.compile(rf"<!-- {name} -->.*?<!-- /{name} -->", re.DOTALL)
        if not pattern.search(new):
            sys.exit(f"README.md has no part <!-- {name} -->")
        new = pattern.sub(lambda _, part=part: part, new)
    if "--check" in sys.argv[1:]:
        if old != new:
            print("README.md is out of date: run python scripts/readme.py", file=sys.stderr)
        return int(old != new)
    readme.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
