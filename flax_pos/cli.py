"""The command line: `flax-pos train`, `params`, `schemes`, `sample`, `report`, `grid`,
`compare`, `generate`."""

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Sequence

COMMANDS = {
    "train": "train one model per position scheme and report how they compare",
    "params": "count embedding, head and positional parameters of a model",
    "schemes": "list all registered position schemes",
    "sample": "continue a text with a trained model",
    "report": "write a run's table, figures and report again",
    "grid": "train schemes on several tasks with several learning rates, and check what papers say",
    "compare": "set the same rows of two runs or grids side by side",
    "generate": "continue a text with a pretrained model",
    "rope": "what a config's rotary embedding does to each pair of channels, at any length",
    "extend": "let a pretrained model read further than it was trained to",
    "export": "write a pretrained model as programs that need nothing but jax",
}
PRETRAINED = ("generate", "extend", "export")
"""Commands of `flax_pos.interop`; the others are the lab's."""
HOMES = {
    "grid": "flax_pos.lab.grid.commands",
    "compare": "flax_pos.lab.grid.commands",
    "rope": "flax_pos.lab.rope.command",
    **dict.fromkeys(PRETRAINED, "flax_pos.interop.commands"),
}
"""Modules of the commands that are not in `flax_pos.lab.commands`."""
READER_LEFT, BAD_INPUT, STOPPED = 1, 2, 130
NEEDED = ("tyro", "rich", "matplotlib", "orbax", "tokenizers")


def main(argv: Sequence[str] | None = None, prog: str = "flax-pos") -> int:
    """Runs one command and returns its exit code: 2 for bad input, 130 when stopped, 1 when what
    reads its output goes away.

    Args:
      argv: the command and its options; None: those of this process.
      prog: the name that messages begin with; that of a script which stands for one command.
    """
    try:
        try:
            return _main(list(sys.argv[1:] if argv is None else argv), prog)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python writes what is left once more at its exit, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_LEFT


def _main(argv: Sequence[str], prog: str) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(_usage(prog))
        return 0 if argv else BAD_INPUT
    if argv[0] in ("-V", "--version"):
        print(f"flax-pos {importlib.metadata.version('flax-pos')}")
        return 0
    name, *rest = argv
    if name not in COMMANDS:
        return _fail(prog, f"unknown command {name!r}; known: {', '.join(COMMANDS)}")
    missing = [package for package in NEEDED if importlib.util.find_spec(package) is None]
    if missing:
        return _fail(prog, f"{missing[0]} is not installed; install the extra: flax-pos[lab]")
    return _run(name, rest, prog if prog != "flax-pos" else f"{prog} {name}")


def _run(name: str, argv: Sequence[str], prog: str) -> int:
    from rich.console import Console

    from flax_pos.arguments import UsageError
    from flax_pos.interop.errors import CheckpointError
    from flax_pos.lab.errors import UserError
    from flax_pos.lab.run import Interrupted

    try:
        home = HOMES.get(name, "flax_pos.lab.commands")
        getattr(importlib.import_module(home), name)(argv, prog, Console())
    except (UserError, CheckpointError, UsageError) as error:
        if os.environ.get("FLAX_POS_TRACEBACK"):
            raise
        return _fail(prog, str(error))
    except Interrupted as stop:
        print(f"stopped; go on with: {prog} --resume {stop.folder}", file=sys.stderr)
        return STOPPED
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return STOPPED
    return 0


def _fail(prog: str, message: str) -> int:
    print(f"{prog}: error: {message}", file=sys.stderr)
    return BAD_INPUT


def _usage(prog: str) -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            f"usage: {prog} COMMAND [OPTIONS]",
            "",
            "Token embeddings and position encodings for JAX: the lab that compares them.",
            "",
            *lines,
            "",
            f"{prog} COMMAND --help lists a command's options; {prog} --version the version.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
