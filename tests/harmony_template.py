"""What chat templates of tests share that write as gpt-oss's does."""

# It has gpt-oss's rules, and its ways to fail: one call a message, no thought beside a preamble.
CONVERSATION = """
{%- set last = namespace(name=none) %}
{%- for message in (messages[1:] if told else messages) %}
{%- if message.role == "user" %}{{ "<|start|>user<|message|>" + message.content + "<|end|>" }}
{%- elif message.role == "tool" %}
{%- if last.name is none %}{{ raise_exception("no call") }}{% endif %}
{{- "<|start|>functions." + last.name + " to=assistant<|channel|>commentary<|message|>" + message.content + "<|end|>" }}
{%- elif message.role == "assistant" and "tool_calls" in message %}
{%- if message.tool_calls | length > 1 %}{{ raise_exception("one call a message") }}{% endif %}
{%- if message.content and message.thinking %}{{ raise_exception("both") }}{% endif %}
{%- set thought = message.content or message.thinking %}
{%- if thought %}{{ "<|start|>assistant<|channel|>analysis<|message|>" + thought + "<|end|>" }}{% endif %}
{%- set last.name = message.tool_calls[0].function.name %}
{{- "<|start|>assistant to=functions." + last.name + "<|channel|>commentary json<|message|>" }}
{{- message.tool_calls[0].function.arguments | tojson + "<|call|>" }}
{%- elif message.role == "assistant" %}
{%- if "thinking" in message and "<|channel|>" in message.thinking %}{{ raise_exception("tags") }}{% endif %}
{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
{%- else %}{{ raise_exception("who is " + message.role) }}
{%- endif %}
{%- endfor %}
{{- "<|start|>assistant" }}
"""
