import json

import pytest
from interop_files import byte_pairs
from tokenizers import Tokenizer, models, pre_tokenizers

from flax_pos.interop import CheckpointError, chat, load_tokenizer

pytest.importorskip("jinja2", reason="the extra flax-pos[weights] is not installed")

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}\n"
    "  {%- if message.role == 'tool' %}{% continue %}{% endif %}\n"
    "  {%- if message.role == 'martian' %}{{ raise_exception('no martians here') }}{% endif %}\n"
    "<{{ message.role }}> {{ message.content | tojson }}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}<assistant>{{ ' think' if think }}{% endif %}\n"
)
MESSAGES = [
    {"role": "system", "content": "Be <brief> & ü."},
    {"role": "tool", "content": "left out"},
    {"role": "user", "content": "Hello"},
]
TEXT = '[B]<system> "Be <brief> & ü."\n<user> "Hello"\n'


@pytest.fixture
def directory(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"[B]": 0, "Hello": 1, "[U]": 2}, "[U]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[B]"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def configure(directory, template=TEMPLATE, **fields):
    config = {"bos_token": {"content": "[B]"}, "chat_template": template, **fields}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(directory)


def test_messages_become_text(directory):
    tokenizer = configure(directory)
    assert tokenizer.apply_chat_template(MESSAGES, tokenize=False) == TEXT
    answer = tokenizer.apply_chat_template(
        MESSAGES, tokenize=False, add_generation_prompt=True, think=True
    )
    assert answer == TEXT + "<assistant> think"
    assert (
        tokenizer.apply_chat_template(MESSAGES[2:]) == tokenizer.encode('[B]<user> "Hello"\n').ids
    )
    assert tokenizer.get_vocab_size() == 3  # what the library has is there as well


def test_places_of_templates(directory, tmp_path):
    text = lambda tokenizer: tokenizer.apply_chat_template(MESSAGES[2:], tokenize=False)
    by_name = [{"name": "tools", "template": "no"}, {"name": "default", "template": "yes"}]
    assert text(configure(directory, by_name)) == "yes"
    (directory / "chat_template.jinja").write_text("apart {{ eos_token is defined }}")
    assert text(load_tokenizer(directory)) == "apart False"
    (directory / "special_tokens_map.json").write_text('{"eos_token": "[E]"}')
    assert text(load_tokenizer(directory)) == "apart True"
    chatty = "{{ bos_token }}{{ messages[0].content }}"
    extra = {"bos_token_id": 0, "add_bos_token": True}
    path = byte_pairs(tmp_path / "x.gguf", chat_template=chatty, **extra)
    tokenizer = load_tokenizer(path)
    assert text(tokenizer) == "<|end|>Hello"
    assert tokenizer.apply_chat_template(MESSAGES[2:]).count(0) == 1  # not begun twice


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "has no chat template"),
        (3, "must be text"),
        ([{"name": "tools", "template": "x"}], "has no chat template"),
        ("{% for", "TemplateSyntaxError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ cycler.__init__.__globals__.os.getcwd() }}", "SecurityError"),
        ("{% include '/etc/passwd' %}", "failed: TypeError: no loader"),
        ("{{ 'x' * 10**10 }}", "MemoryError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    ],
)
def test_bad_templates(directory, template, message):
    with pytest.raises(CheckpointError, match=message):
        configure(directory, template).apply_chat_template(MESSAGES)


def test_a_template_may_refuse(directory):
    with pytest.raises(CheckpointError, match=r"the chat template failed: .*no martians here"):
        configure(directory).apply_chat_template([{"role": "martian", "content": ""}])


def test_an_endless_template_is_stopped(directory, monkeypatch):
    monkeypatch.setattr(chat, "SECONDS", 1)
    loops = "".join(f"{{% for {name} in range(99999) %}}" for name in "abc") + "{% endfor %}" * 3
    with pytest.raises(CheckpointError, match="was stopped"):
        configure(directory, loops).apply_chat_template(MESSAGES)


@pytest.mark.parametrize(
    ("messages", "error", "message"),
    [
        ("Hello", TypeError, "a list of at least one message, got 'Hello'"),
        ([], TypeError, "at least one message"),
        (["Hello"], ValueError, r"messages\[0\]='Hello' must be a mapping with a \"role\""),
        ([{"content": "Hello"}], ValueError, r"messages\[0\]"),
    ],
)
def test_bad_messages(directory, messages, error, message):
    with pytest.raises(error, match=message):
        configure(directory).apply_chat_template(messages)
