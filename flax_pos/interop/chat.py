"""Messages as the text that a chat model was trained on, by the checkpoint's own template.

A template is a program that came with the file (jinja2, as Hugging Face libraries run it). It is
rendered in jinja2's sandbox, in a process of its own with bounded time and memory: a sandbox alone
keeps a program from the machine, not from running for ever.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flax_pos.interop import render_chat
from flax_pos.interop.errors import CheckpointError, require
from flax_pos.interop.gguf_file import GGUFFile
from flax_pos.interop.jsonfile import read_json, read_text

MAX_TEMPLATE = 2**18
"""Characters of the longest template; real ones have a tenth of it."""
SECONDS, BYTES, PATIENCE = 10, 2**30, 120
"""What rendering may take: seconds of processor time, bytes of memory, seconds on the clock."""
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
_GGUF_NAMES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token",
               "padding": "pad_token"}  # fmt: skip


class ChatTokenizer:
    """A checkpoint's tokenizer: a `tokenizers.Tokenizer` (`library`), all of whose methods it hands
    on, and its chat template, which is read when it is asked for."""

    __slots__ = ("library", "path")

    def __init__(self, library: Any, path: Path):
        self.library, self.path = library, path

    def __getattr__(self, name: str) -> Any:
        return getattr(self.library, name)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **variables: Any,
    ) -> Any:
        """What a conversation looks like to the model.

        Args:
          messages: each with "role" (such as "system", "user", "assistant") and "content".
          add_generation_prompt: begin the assistant's answer, for the model to go on.
          tokenize: token ids as a list, or else the text.
          variables: what else the template reads, such as `tools` or `enable_thinking`.

        Raises:
          CheckpointError: no template there, or one that fails, refuses the messages, or takes too
            long.
          TypeError, ValueError: messages that are not of that form.
          ImportError: jinja2 is not installed.
        """
        _check_messages(messages)
        template, special = read_template(self.path)
        given = {"tools": None, "documents": None, **special, **variables}
        text = render(
            template,
            {**given, "messages": list(map(dict, messages)),
             "add_generation_prompt": add_generation_prompt},
            source=str(self.path),
        )  # fmt: skip
        # The template has written the tokens that stand at the beginning.
        return self.library.encode(text, add_special_tokens=False).ids if tokenize else text


def read_template(path: Path) -> tuple[str, dict[str, str]]:
    """A checkpoint's template, and the special tokens that it may name.

    Raises:
      CheckpointError: there is none, or it cannot be read.
    """
    template, special = _of_gguf(path) if path.suffix == ".gguf" else _of_directory(path)
    if isinstance(template, list):  # several, by name
        named = [t for t in template if isinstance(t, dict) and t.get("name") == "default"]
        template = named[0].get("template") if named else None
    if template is None:
        raise CheckpointError(f"{path} has no chat template: it is no chat model, or lost it")
    if not isinstance(template, str) or len(template) > MAX_TEMPLATE:
        raise CheckpointError(
            f"{path}: the chat template must be text of at most {MAX_TEMPLATE} characters"
        )
    return template, {name: token for name, token in special.items() if isinstance(token, str)}


def _of_gguf(path: Path) -> tuple[Any, dict[str, Any]]:
    metadata = GGUFFile(path).metadata
    tokens = metadata.get("tokenizer.ggml.tokens")
    tokens = tokens if isinstance(tokens, list) else []
    ids = {
        name: metadata.get(f"tokenizer.ggml.{key}_token_id") for key, name in _GGUF_NAMES.items()
    }
    special = {n: tokens[i] for n, i in ids.items() if type(i) is int and 0 <= i < len(tokens)}
    return metadata.get("tokenizer.chat_template"), special


def _of_directory(path: Path) -> tuple[Any, dict[str, Any]]:
    directory = path if path.is_dir() else path.parent
    config = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        if (directory / file).exists():
            config.update(read_json(directory / file))
    apart = directory / "chat_template.jinja"
    template = read_text(apart, MAX_TEMPLATE) if apart.exists() else config.get("chat_template")
    given = {name: config.get(name) for name in _SPECIAL}
    content = lambda token: token.get("content") if isinstance(token, dict) else token
    return template, {name: content(token) for name, token in given.items()}


def _check_messages(messages: Any) -> None:
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise TypeError(f"messages must be a list of at least one message, got {messages!r}")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValueError(
                f'messages[{number}]={message!r} must be a mapping with a "role", such as '
                '{"role": "user", "content": "Hello"}'
            )


def render(template: str, variables: Mapping[str, Any], *, source: str) -> str:
    """The text that a template makes of its variables, which must be plain data as JSON has it.

    Raises:
      CheckpointError: it fails, asks for what the sandbox forbids, or takes more than it may.
      TypeError: variables that are not plain data.
      ImportError: jinja2 is not installed.
    """
    require("jinja2", "rendering chat templates")
    job = {
        "template": template,
        "variables": variables,
        "path": sys.path,
        "seconds": SECONDS,
        "bytes": BYTES,
    }
    command = [sys.executable, "-I", render_chat.__file__]
    try:
        done = subprocess.run(
            command, input=json.dumps(job).encode(), capture_output=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired as error:
        raise CheckpointError(f"{source}: the chat template took over {PATIENCE} s") from error
    if done.returncode == render_chat.FAILED:
        raise CheckpointError(f"{source}: the chat template failed: {done.stderr.decode()}")
    if done.returncode:
        raise CheckpointError(
            f"{source}: the chat template was stopped (exit code {done.returncode}); it may take "
            f"{SECONDS} s and {BYTES >> 20} MiB"
        )
    return done.stdout.decode()


__all__ = ["ChatTokenizer", "read_template", "render"]
