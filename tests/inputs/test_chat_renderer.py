import copy

import pytest
from tokenization.tiny import byte_level_tokenizer

from octavo.errors import ChatTemplateError, InvalidRequestError
from octavo.inputs.chat import ChatRenderer

TOKENIZER = byte_level_tokenizer()
PARTS = "{% for m in messages %}{% for p in m.content %}[{{ p.type }}:{{ p.text }}]{% endfor %}{% endfor %}"
EITHER = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}"
)
USER = {"role": "user", "content": "fox"}


def text_of(messages, template=None, **options):
    return ChatRenderer(TOKENIZER, template).render(messages, **options)["prompt"]


def test_a_conversation_comes_as_text_and_tokens():
    prompt = ChatRenderer(TOKENIZER).render([USER])
    assert prompt["prompt"] == "<|im_start|>user\nfox<|im_end|>\n<|im_start|>assistant\n"
    assert prompt["prompt_token_ids"] == TOKENIZER.encode(prompt["prompt"], add_special_tokens=False)
    assert prompt["prompt_token_ids"][0] == TOKENIZER.bos_token_id


def test_the_last_message_can_be_continued():
    messages = [USER, {"role": "assistant", "content": "The fo"}]
    text = text_of(messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\nThe fo")


def test_contents_take_the_form_that_the_template_understands():
    parts = [{"type": "text", "text": "a"}, "b", {"type": "input_text", "text": "c"}]
    messages = [{"role": "user", "content": parts}]
    before = copy.deepcopy(messages)
    assert "user\na\nb\nc<" in text_of(messages)
    assert text_of(messages, PARTS) == "[text:a][text:b][text:c]"
    assert text_of([USER], PARTS) == "[text:fox]"
    assert text_of([USER, *messages], EITHER) == "fox[a][b][c]"
    assert messages == before


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "empty"),
        ("fox", "list"),
        ([3], r"messages\[0\]"),
        ([{"content": "x"}], "role"),
        ([{"role": 3, "content": "x"}], "role"),
        ([USER, {"role": "user"}], r"messages\[1\] has no content"),
        ([{"role": "user", "content": 3}], "content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "image_url.*text only"),
        ([{"role": "user", "content": [{"type": "text"}]}], "no text"),
        ([{"role": "user", "content": [3]}], "type"),
        ([{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}], "JSON"),
        ([{"role": "assistant", "tool_calls": ["x"]}], "tool_calls"),
        ([{"role": "assistant", "tool_calls": [{}]}], "function"),
        ([USER] * 20000, "16384"),
    ],
)
def test_malformed_messages_are_rejected_with_an_error(messages, words):
    with pytest.raises(ChatTemplateError, match=words) as caught:
        text_of(messages)
    assert caught.value.param is not None


def test_tool_calls_reach_the_template_as_objects():
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x": [1]}'}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    template = "{{ messages[0].content }}{{ messages[0].tool_calls[0].function.arguments.x[0] }}"
    assert text_of(messages, template) == "1"
    assert call["function"]["arguments"] == '{"x": [1]}'


def test_template_kwargs_are_seen_but_cannot_replace_the_conversation():
    assert text_of([USER], "{{ mood }}", template_kwargs={"mood": "fine"}) == "fine"
    assert text_of([USER], "{{ bos_token }}", template_kwargs={"bos_token": "B"}) == "B"
    for name in ("messages", "tools", "chat_template", "tokenize", "add_generation_prompt", "not a name"):
        with pytest.raises(ChatTemplateError, match=name):
            text_of([USER], template_kwargs={name: 1})
    with pytest.raises(ChatTemplateError, match="at most"):
        text_of([USER], template_kwargs={f"name{index}": 1 for index in range(1000)})


def test_tools_and_documents_are_seen():
    template = "{{ tools | tojson }} {{ documents[0].text }}"
    assert text_of([USER], template, tools=[{"name": "f"}], documents=[{"text": "d"}]) == '[{"name": "f"}] d'
    assert text_of([USER], "{{ tools is none }}", tools=[]) == "True"


def test_another_template_can_be_used_for_one_call():
    renderer = ChatRenderer(TOKENIZER)
    assert renderer.with_template("{{ messages[0].content }}").render([USER])["prompt"] == "fox"
    assert renderer.render([USER])["prompt"].startswith("<|im_start|>")


def test_surrogates_in_messages_are_refused():
    with pytest.raises(InvalidRequestError, match="surrogates"):
        text_of([{"role": "user", "content": "\ud800"}])


def test_earlier_thoughts_are_known_by_either_name():
    template = "{% for m in messages %}{{ m.reasoning_content }}={{ m.reasoning }};{% endfor %}"
    thoughts = [{"reasoning": "a"}, {"reasoning_content": "b"}, {"reasoning": None}, {"reasoning": {"x": 1}}, {}]
    messages = [{"role": "assistant", "content": "", **thought} for thought in thoughts]
    assert text_of(messages, template) == "a=a;b=b;=;=;=;"


def test_developers_keep_their_name_where_the_template_knows_it():
    message = {"role": "developer", "content": "be brief"}
    assert text_of([message], "{{ messages[0].role }}") == "system"
    assert text_of([message], "{# developer #}{{ messages[0].role }}") == "developer"
    with pytest.raises(ChatTemplateError, match="must be an object"):
        text_of(["developer"], "{{ messages[0].role }}")


def test_contents_take_the_form_that_is_asked_for():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}]
    assert text_of(messages, EITHER, content_format="string") == "a\nb"
    assert text_of(messages, EITHER, content_format="openai") == text_of(messages, EITHER) == "[a][b]"
    assert text_of([USER], EITHER, content_format="openai") == "[fox]"
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    assert text_of([USER], EITHER, content_format="openai", tools=tools).endswith("[fox]")
    assert text_of([USER], EITHER, content_format="string", tools=tools).endswith("fox")
