# SPDX-License-Identifier: MIT
"""What the README shows of the server works as it is written."""

import json
import pathlib
import re
import shlex

from jspec.server.protocol import chat, completions, responses
from tests.server import running

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = (ROOT / 'README.md').read_text(encoding='utf-8')
GUIDE = (ROOT / 'jspec' / 'server' / 'README.md').read_text(encoding='utf-8')
URL = 'http://127.0.0.1:8000'


def test_curl_is_answered():
  (block,) = re.findall(r'```sh\n(curl .*?)```', README, re.DOTALL)
  command, url, flag, body = shlex.split(block)
  assert (command, flag) == ('curl', '-d') and url.startswith(URL)
  with running.serving() as server:
    found = server.post(url.removeprefix(URL), json.loads(body))
  assert found.status_code == 200
  assert found.json()['choices'][0]['speculative']['origins']


def test_snippet_prints_an_answer(capsys):
  (block,) = re.findall(r'```python\n(import openai.*?)```', README, re.DOTALL)
  with running.serving(names=('smollm2_135m',)) as server:
    exec(block.replace(URL, server.url), {})
  assert capsys.readouterr().out


def test_fields_that_ask_for_nothing_are_listed():
  """Those with a type that holds one value, besides null."""
  for model in (
    completions.CompletionRequest,
    chat.ChatRequest,
    responses.ResponsesRequest,
  ):
    for name, field in model.model_json_schema()['properties'].items():
      kinds = [k for k in field.get('anyOf', [field]) if k != {'type': 'null'}]
      if kinds and all('const' in kind for kind in kinds):
        assert f'`{name}`' in GUIDE, name
