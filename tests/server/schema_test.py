# SPDX-License-Identifier: MIT
"""schemathesis against the OpenAPI schema: whatever it sends, no 500."""

import contextlib
import warnings

import hypothesis
import pytest
import schemathesis
from schemathesis import checks

from tests.server import chat_tools_test, running

# The server runs in this process: what its threads draw hypothesis takes for
# what a strategy drew.
pytestmark = pytest.mark.filterwarnings('ignore:Do not use the `random` module')

FEW, MANY = 12, 150
CHECKS = [
  checks.not_a_server_error,
  checks.status_code_conformance,
  checks.content_type_conformance,
  checks.response_schema_conformance,
]
PATHS = {
  '/v1/completions',
  '/v1/chat/completions',
  '/v1/responses',
  '/v1/models',
  '/v1/models/{name}',
  '/tokenize',
  '/detokenize',
  '/health',
  '/ready',
  '/metrics',
  '/v1/jspec/routing',
  '/v1/jspec/status',
}


@pytest.fixture(scope='module')
def server():
  with running.serving(compiler=chat_tools_test.Compiler()) as found:
    yield found


def schema_of(server):
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    return schemathesis.openapi.from_url(server.url + '/openapi.json')


def run(server, examples):
  """Calls every operation; returns how many calls were made, by path."""
  calls = {}
  for found in schema_of(server).get_all_operations():
    for mode in schemathesis.GenerationMode:
      call_one(found.ok(), mode, calls, examples)
  assert server.get('/health').status_code == 200
  return calls


def call_one(operation, mode, calls, examples):
  """Calls an operation with bodies that are right, or that are not."""

  @hypothesis.settings(
    max_examples=examples,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
  )
  @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
  def call(case):
    response = case.call(timeout=30)
    calls[operation.path] = calls.get(operation.path, 0) + 1
    case.validate_response(response, checks=CHECKS)

  with contextlib.suppress(hypothesis.errors.Unsatisfiable):
    call()  # Where nothing can be wrong, nothing is.


def test_schema_describes_every_path(server):
  schema = server.get('/openapi.json').json()
  assert set(schema['paths']) == PATHS
  body = schema['paths']['/v1/chat/completions']['post']['requestBody']
  name = body['content']['application/json']['schema']['$ref'].split('/')[-1]
  fields = schema['components']['schemas'][name]['properties']
  assert {'messages', 'tools', 'speculative', 'logit_bias'} <= set(fields)


@pytest.mark.slow
def test_few_examples_find_no_500(server):
  assert set(run(server, FEW)) == PATHS


@pytest.mark.slow
def test_many_examples_find_no_500(server):
  assert set(run(server, MANY)) == PATHS
