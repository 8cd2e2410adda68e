"""Published chat templates that bertkit recognizes.

bertkit never runs a template. It parses the template with jinja2, and compares its syntax tree with
the syntax trees of the templates in `KNOWN`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, nodes

MAX_TEMPLATE = 1_000_000
"""Maximum number of characters in a template."""

SYSTEM = "{system}"
"""Placeholder in `KNOWN` for the default system message."""

NEXT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
TURN = "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
LOOP = "{% for message in messages %}" + TURN + "{% endfor %}"
FIRST = "{{ '<|im_start|>system\n" + SYSTEM + "<|im_end|>\n' }}"
SET_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}"
    "{% endif %}{% if system_message is defined %}"
    "{{ '<|im_start|>system\n' + system_message + '<|im_end|>\n' }}{% endif %}"
)
ROLES = "".join(
    "{% " + keyword + " %}{{ '<|im_start|>" + role + "\n' + message['content'] + '<|im_end|>\n' }}"
    for keyword, role in (
        ("if message['role'] == 'user'", "user"),
        ("elif message['role'] == 'assistant'", "assistant"),
        ("else", "system"),
    )
)
TWO_ROLES = ROLES.partition("{% else %}")[0]
HEADER = "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"

KNOWN = {
    "chatml": (
        # Qwen 1.5 and 2, SmolLM2
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        + FIRST + "{% endif %}" + TURN + "{% endfor %}" + NEXT,
        # No default system message
        LOOP + NEXT,
        # Qwen 2.5 without tools
        "{% if messages[0]['role'] == 'system' %}"
        "{{ '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}{% else %}"
        + FIRST + "{% endif %}{% for message in messages %}{% if (message.role == 'user') or "
        "(message.role == 'system' and not loop.first) or (message.role == 'assistant' and not "
        "message.tool_calls) %}" + TURN + "{% endif %}{% endfor %}" + NEXT,
        # unsloth
        "{% for message in messages %}" + ROLES + "{% endif %}{% endfor %}" + NEXT,
        # LLaMA-Factory, with and without a default system message
        "{% set system_message = '" + SYSTEM + "' %}" + SET_SYSTEM
        + "{% for message in messages %}" + TWO_ROLES + "{% endif %}{% endfor %}" + NEXT,
        SET_SYSTEM + "{% for message in messages %}" + TWO_ROLES + "{% endif %}{% endfor %}" + NEXT,
        # A default system message in a variable
        "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}"
        "{% set rest = messages[1:] %}{% else %}{% set system = '" + SYSTEM + "' %}"
        "{% set rest = messages %}{% endif %}{{ '<|im_start|>system\n' + system + '<|im_end|>\n' }}"
        "{% for message in rest %}" + TURN + "{% endfor %}" + NEXT,
    ),
    "llama-3": (
        "{% for message in messages %}{% if loop.first %}{{ '<|begin_of_text|>' }}{% endif %}"
        "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] "
        "+ '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}" + HEADER + "{% endif %}",
    ),
    "llama-3-trimmed": (
        # Llama 3
        "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
        "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | "
        "trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
        "{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}" + HEADER
        + "{% endif %}",
    ),
}  # fmt: skip
"""Known templates of each format."""

NO_OUTPUT = (
    "{% if not add_generation_prompt is defined %}"
    "{% set add_generation_prompt = false %}{% endif %}"
)
"""Statement at the start of some templates that does not change the rendered text."""


@dataclass(frozen=True)
class Recognized:
    """Result of recognizing a template."""

    format: str
    """Format of the template, a key of `KNOWN`."""
    system: str | None = None
    """Default system message of the template, if any."""
    bos: bool = False
    """Whether the BOS token of the tokenizer precedes the conversation."""


def recognize(template: str) -> Recognized | None:
    """Find the known template that renders conversations as the given template does.

    Returns:
        The format and options of the known template, or None if no template matches.
    """
    if len(template) > MAX_TEMPLATE:
        return None
    try:
        tree = _parse(template)
        for name, known in _known():
            system: list[str] = []
            for bos in (False, True) if name == "chatml" else (False,):
                expected = [("print", [("name", "bos_token")])] if bos else []
                if _matches(_merge_outputs([*expected, *known]), tree, system):
                    return Recognized(name, system[0] if system else None, bos)
                system.clear()
    except (TemplateSyntaxError, ValueError, RecursionError):
        return None
    return None


@cache
def _known() -> list[tuple[str, Any]]:
    return [(name, _parse(text)) for name, texts in KNOWN.items() for text in texts]


def _parse(template: str) -> Any:
    """Return the statements of a template in a normalized form, without branches for tools."""
    # transformers sets the same options.
    environment = Environment(trim_blocks=True, lstrip_blocks=True)
    with warnings.catch_warnings():
        # Strings with unknown escape sequences cause this warning.
        warnings.simplefilter("ignore", DeprecationWarning)
        body = _body(environment.parse(template).body)
        ignored = _body(environment.parse(NO_OUTPUT).body)
    if body[:1] == ignored:
        return body[1:]
    # The output of the BOS token may precede `NO_OUTPUT`.
    return [*body[:1], *body[2:]] if body[1:2] == ignored else body


def _body(statements: list[Any]) -> list[Any]:
    return _merge_outputs([part for statement in statements for part in _statement(statement)])


def _statement(node: Any) -> list[Any]:
    if isinstance(node, nodes.Output):
        return [("print", [part for child in node.nodes for part in _parts(child)])]
    if isinstance(node, nodes.If):
        if node.test == nodes.Name("tools", "load") and not node.elif_:
            return _body(node.else_)
        test, elifs = _expression(node.test), [(_expression(e.test), e.body) for e in node.elif_]
        if elifs and not node.else_ and "tool_calls" in str(test):
            elifs = [(also, body) for also, body in elifs if also not in _OTHER_TURNS]
        branches = [(test, node.body), *elifs, (None, node.else_)]
        return [("if", [(also, _body(body)) for also, body in branches])]
    return [_expression(node)]


_OTHER_TURNS = [
    ("compare", ("item", ("name", "message"), ("text", "role")), [("eq", ("text", role))])
    for role in ("assistant", "tool")
]
"""Conditions that select messages about tools when they follow a condition on `tool_calls`."""


def _parts(node: Any) -> list[Any]:
    """Return the expressions whose values an output statement concatenates."""
    if isinstance(node, nodes.TemplateData):
        return [("text", node.data)]
    if isinstance(node, nodes.Add):
        return [*_parts(node.left), *_parts(node.right)]
    if isinstance(node, nodes.Concat):
        return [part for child in node.nodes for part in _parts(child)]
    return [_expression(node)]


def _expression(node: Any) -> Any:
    if isinstance(node, nodes.Const) and isinstance(node.value, str):
        return ("text", node.value)
    if isinstance(node, nodes.Name):
        return ("name", node.name)
    if isinstance(node, nodes.Getattr):
        return ("item", _expression(node.node), ("text", node.attr))
    if isinstance(node, nodes.Getitem):
        return ("item", _expression(node.node), _expression(node.arg))
    if isinstance(node, nodes.Compare):
        return ("compare", _expression(node.expr), [(o.op, _expression(o.expr)) for o in node.ops])
    if isinstance(node, nodes.Add | nodes.Concat):
        return ("concat", _merge_texts(_parts(node)))
    if isinstance(node, nodes.Node):
        fields = [(name, _field(name, value)) for name, value in node.iter_fields()]
        return (type(node).__name__, fields)
    return node


def _field(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return _body(value) if name == "body" else list(map(_expression, value))
    return _expression(value)


def _merge_texts(parts: list[Any]) -> list[Any]:
    """Concatenate adjacent texts."""
    result: list[Any] = []
    for part in parts:
        if part[0] == "text" and result and result[-1][0] == "text":
            result[-1] = ("text", result[-1][1] + part[1])
        elif part != ("text", ""):
            result.append(part)
    return result


def _merge_outputs(statements: list[Any]) -> list[Any]:
    """Merge adjacent output statements."""
    result: list[Any] = []
    for statement in statements:
        if statement[0] == "print" and result and result[-1][0] == "print":
            statement = ("print", [*result.pop()[1], *statement[1]])
        if statement[0] == "print":
            statement = ("print", _merge_texts(statement[1]))
        if statement != ("print", []):
            result.append(statement)
    return result


def _matches(known: Any, tree: Any, system: list[str]) -> bool:
    """Return whether a known syntax tree matches a template's tree.

    The placeholder `SYSTEM` in the known tree matches any text, which is appended to `system`.
    """
    if type(known) is not type(tree):
        return False
    if isinstance(known, str) and SYSTEM in known:
        start, _, end = known.partition(SYSTEM)
        if len(tree) < len(start) + len(end):
            return False
        if not (tree.startswith(start) and tree.endswith(end)):
            return False
        system.append(tree[len(start) : len(tree) - len(end)])
        return True
    if isinstance(known, list | tuple):
        pairs = zip(known, tree, strict=False)
        return len(known) == len(tree) and all(_matches(a, b, system) for a, b in pairs)
    return bool(known == tree)
