import time

import pytest

from octavo.errors import ChatTemplateError
from octavo.tokenization.chat_template import compile_template, render_chat

from .tiny import CHATML

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo "}]


def render(template, messages=MESSAGES, **options):
    return render_chat(template, messages, {}, **options)


def test_a_conversation_is_written_with_the_answers_opening():
    assert render(CHATML) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo <|im_end|>\n<|im_start|>assistant\n"
    )
    assert render(CHATML, add_generation_prompt=False).endswith("yo <|im_end|>\n")


def test_the_last_message_can_be_left_open():
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert render(CHATML, **options).endswith("<|im_start|>assistant\nyo ")
    trimming = CHATML.replace("message['content']", "message['content'] | trim")
    assert render(trimming, **options).endswith("<|im_start|>assistant\nyo")
    parts = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
    assert render(parts, [{"role": "user", "content": [{"type": "text", "text": "a"}]}], **options) == "[a"


def test_leaving_the_last_message_open_needs_one():
    options = {"add_generation_prompt": False, "continue_final_message": True}
    for messages, template in (([], CHATML), ([{"role": "user", "content": None}], CHATML), (MESSAGES, "nothing")):
        with pytest.raises(ChatTemplateError):
            render(template, messages, **options)
    with pytest.raises(ChatTemplateError, match="exclude"):
        render(CHATML, add_generation_prompt=True, continue_final_message=True)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for m in messages %}\n  {% if m.role == 'user' %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}", "hi\n"),
        ("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("a{% generation %}b{% endgeneration %}c", "abc"),
        ("{{ 'a' ~ 1 ~ none }}", "a1None"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(',') }}", "hi"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('a') + m('b') }}", "<a><b>"),
        ("{{ '**a** %s 1234567' % 'x' }} {{ '{}-{:>4}'.format('a', 'b') }}", "**a** x 1234567 a-   b"),
        ("{{ 'a b'.split(' ')[-1].replace('b', 'c').upper() }}", "C"),
        ("{{ (strftime_now('%Y') | int) > 2000 }}", "True"),
    ],
)
def test_what_templates_rely_on_is_there(template, text):
    assert render(template) == text


def test_templates_errors_come_with_their_own_words():
    with pytest.raises(ChatTemplateError, match="Roles must alternate"):
        render("{{ raise_exception('Roles must alternate') }}")
    with pytest.raises(ChatTemplateError, match="line 2"):
        render("\n{% for x in %}")
    with pytest.raises(ChatTemplateError, match="undefined"):
        render("{{ nothing.there }}")


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% set x = 'a' * 1000000 %}" + "{{ x.replace('a', 'b').replace('b', 'a') | length }}" * 2000,
    ],
)
def test_a_template_that_takes_too_long_is_stopped(template):
    with pytest.raises(ChatTemplateError, match="stopped"):
        render(template, max_seconds=0.05)


def test_time_in_which_a_template_waits_for_the_processor_does_not_count():
    template = "{% for i in range(3) %}{{ wait(0.1) }}{% endfor %}x"
    values = {"wait": lambda seconds: time.sleep(seconds) or ""}
    assert render_chat(template, MESSAGES, values, max_seconds=0.05) == "x"


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10**9 }}",
        "{{ [0] * 10**9 }}",
        "{{ 2 ** (10**9) }}",
        "{{ 10**1000 * 10**1000 }}",
        "{% set ns = namespace(s='aaaa') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='aaaa') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s=['a']) %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(999) %}{% set ns.l = ns.l + ['a' * 1000000] %}{% endfor %}",
        "{% for i in range(999) %}{{ 'a' * 1000000 }}{% endfor %}",
        "{% macro m() %}{% for i in range(999) %}{{ 'a' * 1000000 }}{% endfor %}{% endmacro %}{{ m() }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ '{:>{w}}'.format(1, w=1000000000) }}",
        "{{ 'x' | center(10**9) }}",
        "{{ 'x'.ljust(10**9) }}",
        "{{ ('\n' * 99999) | indent(99999) }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
        "{{ ('a' * 1000000).join(['b'] * 1000000) }}",
        "{{ (['b'] * 1000000) | join('a' * 1000000) }}",
        "{{ range(99999) | map('string') | map('center', 99999) | join }}",
        "{{ ([[1] * 90000] * 90000) | sum(start=[]) }}",
        "{{ [1] | tojson(indent=99999) }}",
        "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ " + "(" * 500 + "1" + ")" * 500 + " }}",
        "x" * (1 << 21),
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% include 'other' %}",
    ],
)
def test_a_template_cannot_get_out_or_eat_memory(template):
    with pytest.raises(ChatTemplateError):
        render(template)


@pytest.mark.parametrize(
    ("template", "takes_parts", "takes_text"),
    [
        (CHATML, False, True),
        ("{% for m in messages %}{% for p in m['content'] %}{{ p.text }}{% endfor %}{% endfor %}", True, False),
        (
            "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
            "{% for p in m.content | selectattr('type', 'equalto', 'text') %}{{ p.text }}{% endfor %}{% endif %}"
            "{% endfor %}",
            True,
            True,
        ),
        ("{% set c = messages[0].content %}{% for p in c %}{{ p }}{% endfor %}", True, False),
        ("{% for w in messages[0].content.split(' ') %}{{ w }}{% endfor %}", False, True),
    ],
)
def test_what_a_template_takes_as_content_is_seen_from_its_loops(template, takes_parts, takes_text):
    compiled = compile_template(template)
    assert (compiled.takes_content_parts, compiled.takes_content_text) == (takes_parts, takes_text)


def test_a_long_conversation_renders_within_the_limits():
    messages = [{"role": "user", "content": "x" * 2000}] * 1000
    template = CHATML.replace("{{ message['content'] }}", "{{ message.content | trim }}{{ messages | length }}")
    assert len(render(template, messages)) > 2_000_000
