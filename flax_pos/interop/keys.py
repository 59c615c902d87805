"""Reading a foreign config so that nothing in it is overlooked."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flax_pos.interop.errors import CheckpointError

REQUIRED: Any = object()

WITHOUT_EFFECT = frozenset(
    [
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "attention_probs_dropout_prob",
        "attn_implementation",
        "attn_pdrop",
        "auto_map",
        "begin_suppress_tokens",
        "bos_token_id",
        "chunk_size_feed_forward",
        "classifier_dropout",
        "cross_attention_hidden_size",
        "decoder_start_token_id",
        "diversity_penalty",
        "do_sample",
        "dropout",
        "dtype",
        "early_stopping",
        "embd_pdrop",
        "embed_dropout",
        "emb_pdrop",
        "encoder_no_repeat_ngram_size",
        "eos_token_id",
        "exponential_decay_length_penalty",
        "finetuning_task",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "gradient_checkpointing",
        "head_dim_original",
        "hidden_dropout",
        "hidden_dropout_prob",
        "id2label",
        "init_device",
        "init_std",
        "initializer_range",
        "is_decoder",
        "is_encoder_decoder",
        "label2id",
        "layerdrop",
        "length_penalty",
        "max_length",
        "max_new_tokens",
        "min_length",
        "mlp_dropout",
        "model_type",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "pad_token_id",
        "prefix",
        "pretraining_tp",
        "problem_type",
        "pruned_heads",
        "remove_invalid_values",
        "repetition_penalty",
        "resid_dropout",
        "resid_pdrop",
        "residual_dropout",
        "return_dict",
        "return_dict_in_generate",
        "sep_token_id",
        "slow_but_exact",
        "suppress_tokens",
        "task_specific_params",
        "temperature",
        "tf_legacy_loss",
        "tie_encoder_decoder",
        "tokenizer_class",
        "top_k",
        "top_p",
        "torch_dtype",
        "torchscript",
        "transformers.js_config",
        "transformers_version",
        "typical_p",
        "unsloth_fixed",
        "unsloth_version",
        "use_bfloat16",
        "use_cache",
    ]
)
"""Keys about training, generation and bookkeeping, which change no logit."""


class Keys:
    """A config that remembers which of its keys were read.

    Args:
      config: the contents of a `config.json`.
      source: what names it in errors.
    """

    def __init__(self, config: Mapping[str, Any], source: str):
        self.config, self.source = dict(config), source
        self._read: set[str] = set()

    def get(self, names: str, default: Any = REQUIRED) -> Any:
        """The value of a key; `"a|b"` names synonyms. Absent and null are the same.

        Raises:
          CheckpointError: it is absent and there is no default, or synonyms contradict.
        """
        found = None
        for name in names.split("|"):
            self._read.add(name)
            value = self.config.get(name)
            if value is not None and found is not None and value != found:
                raise CheckpointError(
                    f"{self.source}: {names} are given as {found!r} and {value!r}"
                )
            found = value if found is None else found
        if found is None and default is REQUIRED:
            raise CheckpointError(f"{self.source} lacks the key {names.split('|')[0]!r}")
        return default if found is None else found

    def size(self, names: str, default: Any = REQUIRED) -> Any:
        """A whole number of at least 1."""
        value = self.get(names, default)
        if value is not default and (type(value) is not int or not 1 <= value < 2**31):
            raise CheckpointError(
                f"{self.source}: {names}={value!r} must be a whole number of at least 1"
            )
        return value

    def flag(self, names: str, default: Any = REQUIRED) -> Any:
        """True or False."""
        value = self.get(names, default)
        if value is not default and not isinstance(value, bool):
            raise CheckpointError(f"{self.source}: {names}={value!r} must be true or false")
        return value

    def number(self, names: str, default: Any = REQUIRED) -> Any:
        """A real number."""
        value = self.get(names, default)
        if value is not default and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise CheckpointError(f"{self.source}: {names}={value!r} must be a number")
        return value

    def mapping(self, names: str) -> "Keys":
        """A nested mapping, with a memory of its own; nothing in it is checked for being read."""
        value = self.get(names, {})
        if not isinstance(value, Mapping):
            raise CheckpointError(f"{self.source}: {names} must be a mapping, got {value!r}")
        return Keys(value, f"{self.source}: {names}")

    def choice(self, names: str, choices: Mapping[str, Any], default: Any = REQUIRED) -> Any:
        """What `choices` makes of a string."""
        value = self.get(names, default)
        if not isinstance(value, str) or value not in choices:
            raise CheckpointError(
                f"{self.source}: {names}={value!r} is unknown; known: {', '.join(choices)}"
            )
        return choices[value]

    def ignore(self, *names: str) -> None:
        """Marks keys as read elsewhere, or as being without effect."""
        self._read.update(names)

    def must_be(self, expected: Mapping[str, Any], why: str) -> None:
        """Raises CheckpointError if a key is there and has another value than the one expected."""
        for name, value in expected.items():
            if self.get(name, value) != value:
                raise CheckpointError(
                    f"{self.source}: {name}={self.config[name]!r} is not supported{why}, "
                    f"only {value!r} is"
                )

    def check_all_read(self, accepted: frozenset[str] = frozenset()) -> None:
        """Raises CheckpointError if a key has neither been read nor is known to have no effect."""
        unread = self.config.keys() - self._read - WITHOUT_EFFECT - accepted
        left = sorted(name for name in unread if self.config[name] is not None)
        if left:
            raise CheckpointError(
                f"{self.source}: nothing here reads the key {left[0]!r} "
                f"(value {str(self.config[left[0]])[:60]}); if it changes nothing, pass "
                f"ignore_keys={left!r}"
            )


class Key(NamedTuple):
    """One entry of a family's table: how a setting is read from a config, and written to it."""

    names: str
    """The key, or synonyms joined by "|", the usual one first."""
    default: Any = REQUIRED
    read_as: Callable[[Keys, str, Any], Any] = Keys.get
    """`Keys.size`, `Keys.flag`, ..."""
    choices: Mapping[str, Any] | None = None
    """What strings in the config stand for."""

    def read(self, keys: Keys) -> Any:
        if self.choices is not None:
            return keys.choice(self.names, self.choices, self.default)
        return self.read_as(keys, self.names, self.default)

    def write(self, config: dict[str, Any], value: Any) -> None:
        """Makes `read` give `value`, under the name that the config uses already."""
        if self.choices is not None:
            value = next(name for name, meaning in self.choices.items() if meaning == value)
        names = self.names.split("|")
        used = [name for name in names if name in config] or names[:1]
        config.update(dict.fromkeys(used, value))


def size(names: str, default: Any = REQUIRED) -> Key:
    return Key(names, default, Keys.size)


def flag(names: str, default: Any = REQUIRED) -> Key:
    return Key(names, default, Keys.flag)


def number(names: str, default: Any = REQUIRED) -> Key:
    return Key(names, default, Keys.number)


def choice(names: str, choices: Mapping[str, Any], default: Any = REQUIRED) -> Key:
    return Key(names, default, choices=choices)


__all__ = ["REQUIRED", "WITHOUT_EFFECT", "Key", "Keys", "choice", "flag", "number", "size"]
