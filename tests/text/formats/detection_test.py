# SPDX-License-Identifier: MIT
"""A template's own words say how its model writes calls and thoughts."""

import pytest

from jspec import errors
from jspec.text.formats import deepseek, detection, thinking

# What is telling in templates as they are published.
SOURCES = {
  'hermes': '{{- \'\\n<tool_call>\\n{"name": "\' }}',
  'qwen_coder': "'<tool_call>\\n<function=' + tool_call.name + '>\\n'",
  'mistral': '{{- "[TOOL_CALLS][" }}',
  'deepseek': "{{'" + deepseek.BEGIN + deepseek.CALL + "' + tool['type']}}",
  'harmony': (
    '{{- "<|start|>assistant to=" }}{{- "functions." + tool_call.name +'
    ' "<|channel|>commentary " }}'
  ),
  'pythonic': (
    '{{- "Environment: ipython\\n" }}{{- "Respond in the format'
    ' [func_name1(params_name1=params_value1...), func_name2(params)]" }}'
  ),
  'llama_json': (
    '{{- "Environment: ipython\\n" }}{{- \'{"name": "\' + tool_call.name }}'
    '{{- \'"parameters": \' }}'
  ),
}


@pytest.mark.parametrize('name', SOURCES)
def test_format_is_read_off_the_template(name):
  assert detection.tool_format(SOURCES[name]).name == name
  assert detection.named(name).name == name


def test_template_without_calls_or_with_unknown_ones_has_no_format():
  assert detection.tool_format("{{ m['content'] }}") is None
  # Tags like Hermes', but no JSON between them.
  unknown = "'<tool_call>' + tc.name + '<arg_key>' + k + '</arg_key>'"
  assert detection.tool_format(unknown) is None
  with pytest.raises(errors.UserError, match='harmony, hermes, llama_json'):
    detection.named('xml')


def test_tags_are_read_off_the_template():
  assert detection.tags("content.split('</think>')") is thinking.THINK
  assert detection.tags("'[THINK]' + x + '[/THINK]'") is thinking.MISTRAL
  assert detection.tags("{{ m['content'] }}") is None
