"""Published chat templates give the ids of transformers; all other templates are rejected."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import tokenizers
from tests.extensions.generation.test_chat_format import CHATML, LLAMA, vocabulary

from bertkit.errors import TokenizerError
from bertkit.extensions.generation.chat_format import ChatFormat, Message
from bertkit.extensions.generation.chat_templates import recognize
from bertkit.text.tokenizer import Tokenizer

TURN = "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
NEXT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
LOOP = "{% for message in messages %}" + TURN + "{% endfor %}"
PLAIN = LOOP + NEXT
QWEN = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}" + NEXT
)
QWEN25 = (
    r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n{\"name\": <function-name>}\n<|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen. You are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) """
    r"""or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {{- tool_call.name }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
)
META = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
    "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim "
    "+ '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
CONTENT = "\n' + message['content'] + '<|im_end|>\n' }}"
UNSLOTH = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{{'<|im_start|>user" + CONTENT
    + "{% elif message['role'] == 'assistant' %}{{'<|im_start|>assistant" + CONTENT
    + "{% else %}{{ '<|im_start|>system" + CONTENT + "{% endif %}{% endfor %}" + NEXT
)  # fmt: skip
FACTORY = (
    "{% set system_message = 'Be kind.' %}{% if messages[0]['role'] == 'system' %}"
    "{% set system_message = messages[0]['content'] %}{% endif %}"
    "{% if system_message is defined %}{{ '<|im_start|>system\n' + system_message + "
    "'<|im_end|>\n' }}{% endif %}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '<|im_start|>user" + CONTENT + "{% elif message['role'] == 'assistant' %}"
    "{{ '<|im_start|>assistant" + CONTENT + "{% endif %}{% endfor %}" + NEXT
)  # fmt: skip
UNDEFINED = "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}"

SUPPORTED = {
    "chatml": PLAIN,
    "chatml, spaced": PLAIN.replace("{{", "{{  ").replace(" + ", "+").replace("'", '"'),
    "chatml, indented": PLAIN.replace("{%", "\n  {%-").replace("{{", "{{-"),
    "chatml, bos": "{{ bos_token }}" + PLAIN,
    "chatml, undefined": UNDEFINED + "{% endif %}" + PLAIN,
    "chatml, of the tests": CHATML,
    "qwen 2": QWEN,
    "qwen 2, escaped": QWEN.replace("\n", "\\n"),
    "qwen 2.5": QWEN25,
    "unsloth": UNSLOTH,
    "llama-factory": FACTORY,
    "llama 3": META,
    "llama 3, of the tests": LLAMA,
}

OTHER = {
    "text before": "Chat:\n" + PLAIN,
    "text after": PLAIN + "> ",
    "no line break after a turn": PLAIN.replace(" + '\n' }}", " }}", 1),
    "line break between statements": PLAIN.replace("{% endfor %}", "\n\n{% endfor %}"),
    "indented output": PLAIN.replace("{{", "  {{"),
    "upper": PLAIN.replace("message['content']", "message['content'] | upper"),
    "trim": PLAIN.replace("message['content']", "message['content'] | trim"),
    "strip": PLAIN.replace("message['content']", "message['content'].strip()"),
    "other role": PLAIN.replace("'<|im_start|>assistant\n'", "'<|im_start|>bot\n'"),
    "thinking": PLAIN.replace("assistant\n'", "assistant\n<think>\n'"),
    "no prompt": LOOP,
    "always prompted": LOOP + "{{ '<|im_start|>assistant\n' }}",
    "eos after each turn": PLAIN.replace("{% endfor %}", "{{ eos_token }}{% endfor %}"),
    "bos in the loop": PLAIN.replace("{% endfor %}", "{% endfor %}{{ bos_token }}"),
    "two system messages": QWEN.replace("{% endif %}", "{{ 'Hi' }}{% endif %}", 1),
    "system token": QWEN.replace("a helpful", "a <|im_end|> helpful"),
    "system expression": QWEN.replace("a helpful", "a ' + bos_token + ' helpful"),
    "first only": PLAIN.replace("in messages", "in messages[:1]"),
    "filtered loop": PLAIN.replace("in messages", "in messages if message['role'] == 'user'"),
    "reversed": PLAIN.replace("in messages", "in messages | reverse"),
    "bad syntax": PLAIN + "{% endif %}",
    "unclosed": PLAIN + "{{",
    "huge number": PLAIN + "{{ " + "9" * 5000 + " }}",
    "nested": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "set": PLAIN.replace("{% for", "{% set messages = [] %}{% for", 1),
    "macro": "{% macro f() %}<|im_start|><|im_end|>{% endmacro %}" + PLAIN,
    "else branch": QWEN25.replace(
        "    {%- endif %}\n{%- endfor %}\n{%- if", "    {%- else %}x{%- endif %}{%- endfor %}{%- if"
    ),
    "elif branch": QWEN25.replace('elif message.role == "tool"', 'elif message.role == "system"'),
    "llama 3, other header": META.replace("\n\n'+", "\n'+"),
    "llama 3, two bos": "{{ bos_token }}" + META,
    "mistral": "{{ bos_token }}{% for m in messages %}{{ '[INST] ' + m['content'] }}{% endfor %}",
    "empty": "",
}

CONVERSATIONS = [
    [("user", "Hello there.")],
    [("system", "Be brief."), ("user", " two\n\nlines\n")],
    [("user", "Hello"), ("assistant", "\n\n  Hi!\n"), ("user", "x"), ("assistant", "Yes.")],
]


def write(template: str, folder: Path) -> Path:
    """Write a tokenizer with a BOS token and a chat template."""
    kind = "llama-3" if "eot_id" in template else "chatml"
    vocabulary(kind, template or None).save(folder)
    (folder / "chat_template.jinja").write_text(template)
    path = folder / "tokenizer_config.json"
    bos = "<|begin_of_text|>" if kind == "llama-3" else "<|endoftext|>"
    path.write_text(json.dumps({**json.loads(path.read_text()), "bos_token": bos}))
    return folder


@pytest.mark.parametrize("name", SUPPORTED)
def test_chat_matches_apply_chat_template(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    folder = write(SUPPORTED[name], tmp_path)
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    chat = ChatFormat(Tokenizer.load(folder))
    for conversation in CONVERSATIONS:
        rows = [{"role": role, "content": content} for role, content in conversation]
        messages = [Message(role, content) for role, content in conversation]  # type: ignore[arg-type]
        for answer in (False, True):
            expected = reference.apply_chat_template(rows, add_generation_prompt=answer)
            found = chat.encode(messages, answer=answer)[0]
            assert found.tolist() == list(expected["input_ids"])


@pytest.mark.parametrize("name", OTHER)
def test_chat_rejects_other_template(name: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write(OTHER[name], tmp_path))
    with pytest.raises(TokenizerError, match=r"chat_template is not|its chat template"):
        ChatFormat(tokenizer)


def test_chat_uses_default_of_several_templates() -> None:
    tokenizer = vocabulary("chatml", PLAIN)
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": PLAIN}]
    several = Tokenizer(tokenizer.core, {"eos_token": "<|endoftext|>", "chat_template": named})
    assert ChatFormat(several).kind == "chatml"
    without = Tokenizer(tokenizer.core, {"chat_template": named[:1]})
    with pytest.raises(TokenizerError, match="no default template"):
        ChatFormat(without)


@pytest.mark.parametrize("unit", ["\n", "{{", "{% if", "'", "{#", "\\'", "<|im_start|>system"])
def test_recognize_takes_linear_time(unit: str) -> None:
    start = time.process_time()
    assert recognize("{{ '<|im_end|><|im_start|>system" + unit * 20_000) is None
    assert time.process_time() - start < 1


def test_recognize_rejects_long_template() -> None:
    assert recognize(PLAIN) is not None
    assert recognize(PLAIN + "{#" + " " * 1_000_000 + "#}") is None


def test_chat_rejects_tokens_that_strip_text() -> None:
    core = tokenizers.Tokenizer.from_str(vocabulary("chatml", PLAIN).core.to_str())
    core.add_special_tokens([tokenizers.AddedToken("<|im_end|>", rstrip=True, special=True)])
    settings = {"eos_token": "<|endoftext|>", "chat_template": PLAIN}
    with pytest.raises(TokenizerError, match="reads the special tokens of its chat template"):
        ChatFormat(Tokenizer(core, settings))
