# SPDX-License-Identifier: MIT
"""The manifests: valid, at one with each other, the server and the image."""

import re
import subprocess

import pytest

from jspec.cli import serve
from jspec.server import app as app_lib
from jspec.server import driver, served
from tests.launch import serving
from tests.server import fake

yaml = pytest.importorskip('yaml', reason='no PyYAML: pip install pyyaml')

PATHS = sorted((serving.LAUNCH / 'gke').glob('*.yaml'))
FOUND = {
  found['kind']: found
  for path in PATHS
  for found in yaml.safe_load_all(path.read_text(encoding='utf-8'))
}
POD = FOUND['Deployment']['spec']['template']
(CONTAINER,) = POD['spec']['containers']


def args():
  """The flags; the command is a shell that puts them behind its own words."""
  shell, option, script, name = CONTAINER['command']
  assert (shell, option, name) == ('sh', '-c', 'jspec')
  done = subprocess.run(
    [
      *(
        'sh',
        '-c',
        script.replace('ulimit -l', 'true').replace('exec', 'echo'),
      ),
      *(name, *CONTAINER['args']),
    ],
    capture_output=True,
    text=True,
    check=True,
  )
  return serving.flags(done.stdout.split()[1:])


def test_manifests_follow_the_schema():
  validate = serving.linter(
    'kubernetes-validate', install='pip install kubernetes-validate'
  )
  subprocess.run([validate, '--strict', *map(str, PATHS)], check=True)


def test_schema_would_find_something(tmp_path):
  validate = serving.linter(
    'kubernetes-validate', install='pip install kubernetes-validate'
  )
  bad = tmp_path / 'bad.yaml'
  text = PATHS[0].read_text(encoding='utf-8')
  bad.write_text(text.replace('readinessProbe', 'readynessProbe'))
  done = subprocess.run(
    [validate, '--strict', str(bad)], capture_output=True, check=False
  )
  assert done.returncode != 0


def test_flags_exist():
  found = args()
  (port,) = CONTAINER['ports']
  assert (found.host, found.port) == ('0.0.0.0', port['containerPort'])


def test_key_is_what_the_server_reads():
  (env,) = CONTAINER['env']
  assert env['name'] == serve._KEY
  assert 'secretKeyRef' in env['valueFrom'] and not args().api_key


def test_labels_and_ports_meet():
  labels = POD['metadata']['labels']
  assert FOUND['Deployment']['spec']['selector']['matchLabels'] == labels
  service = FOUND['Service']['spec']
  assert service['selector'].items() <= labels.items()
  assert service['ports'][0]['targetPort'] == CONTAINER['ports'][0]['name']


@pytest.mark.parametrize(
  'probe, path',
  [
    ('startupProbe', '/ready'),
    ('readinessProbe', '/ready'),
    ('livenessProbe', '/health'),
  ],
)
def test_probes_ask_what_there_is(probe, path):
  asked = CONTAINER[probe]['httpGet']
  assert asked['path'] == path
  assert asked['port'] == CONTAINER['ports'][0]['name']
  app = app_lib.create(
    served.Served(
      driver=driver.Driver(fake.Engine, max_open=1),
      target=fake.target(),
      names=('fake',),
      vocab_size=fake.VOCAB_SIZE,
      context_len=fake.CONTEXT_LEN,
    )
  )
  assert path in {route.path for route in app.routes}


def test_pod_has_time_to_stop():
  command = CONTAINER['lifecycle']['preStop']['exec']['command']
  assert command[0] == 'sleep'
  needed = int(command[1]) + args().grace + serving.LAST_WORDS_S
  assert POD['spec']['terminationGracePeriodSeconds'] >= needed


def test_privileges_are_few():
  context = CONTAINER['securityContext']
  assert not context.get('privileged')
  assert context['allowPrivilegeEscalation'] is False
  assert context['capabilities'] == {'drop': ['ALL'], 'add': ['SYS_RESOURCE']}
  assert POD['spec']['automountServiceAccountToken'] is False


def test_what_is_written_is_mounted():
  """The root is read-only."""
  assert CONTAINER['securityContext']['readOnlyRootFilesystem'] is True
  text = (serving.LAUNCH / 'Dockerfile').read_text(encoding='utf-8')
  volume = re.search(r'^VOLUME (\S+)$', text, re.MULTILINE).group(1)
  mounts = {m['mountPath']: m['name'] for m in CONTAINER['volumeMounts']}
  assert {volume, '/tmp'} <= set(mounts)
  assert set(mounts.values()) == {v['name'] for v in POD['spec']['volumes']}


def test_chips_are_asked_for_as_they_are_limited():
  resources = CONTAINER['resources']
  wanted = resources['requests']['google.com/tpu']
  assert wanted == resources['limits']['google.com/tpu']
  shape = POD['spec']['nodeSelector']['cloud.google.com/gke-tpu-topology']
  wide, high = map(int, shape.split('x'))
  assert int(wanted) == wide * high
