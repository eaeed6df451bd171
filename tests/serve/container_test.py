# SPDX-License-Identifier: MIT
"""Memory that control groups leave, from folders like those of Linux."""

import pytest

from jspec.serve import container, memory

V2 = ('memory.max', 'memory.current', 'inactive_file')
V1 = (
  'memory.limit_in_bytes',
  'memory.usage_in_bytes',
  'total_inactive_file',
)


def write(folder, names, limit, used, cache=0):
  folder.mkdir(parents=True, exist_ok=True)
  (folder / names[0]).write_text(f'{limit}\n')
  (folder / names[1]).write_text(f'{used}\n')
  (folder / 'memory.stat').write_text(f'anon 7\n{names[2]} {cache}\nfile 9\n')


@pytest.fixture
def own(tmp_path):
  def made(text):
    path = tmp_path / 'own'
    path.write_text(text)
    return path

  return made


def test_the_tightest_group_decides(tmp_path, own):
  root = tmp_path / 'groups'
  write(root / 'pods', V2, 1000, 400)
  write(root / 'pods' / 'jspec', V2, 5000, 100, cache=50)
  path = own('0::/pods/jspec\n')
  assert container.room(root, path) == 600
  write(root / 'pods', V2, 'max', 400)
  assert container.room(root, path) == 4950


def test_a_container_sees_its_group_as_the_root(tmp_path, own):
  root = tmp_path / 'groups'
  write(root, V2, 1000, 300, cache=100)
  assert container.room(root, own('0::/\n')) == 800
  assert container.room(root, own('0::/../../elsewhere\n')) == 800


def test_version_1_is_read(tmp_path, own):
  root = tmp_path / 'groups'
  write(root / 'memory', V1, 2**63 - 4096, 100)
  write(root / 'memory' / 'docker', V1, 900, 300, cache=1)
  lines = '3:cpu,cpuacct:/docker\n2:memory:/docker\n1:name=systemd:/x\n'
  assert container.room(root, own(lines)) == 601


def test_no_group_is_no_limit(tmp_path, own):
  root = tmp_path / 'groups'
  root.mkdir()
  assert container.room(root, own('0::/\n')) is None
  assert container.room(root, tmp_path / 'missing') is None


def test_what_is_used_beyond_the_limit_leaves_nothing(tmp_path, own):
  root = tmp_path / 'groups'
  write(root, V2, 100, 300)
  assert container.room(root, own('0::/\n')) == 0


def test_the_engine_is_told_the_smaller_of_both(tmp_path, monkeypatch):
  meminfo = tmp_path / 'meminfo'
  meminfo.write_text('MemTotal: 9 kB\nMemAvailable: 4 kB\n')
  monkeypatch.setattr(memory, 'MEMINFO', meminfo)
  for room, free in ((None, 4096), (100, 100), (10**6, 4096)):
    monkeypatch.setattr(container, 'room', lambda room=room: room)
    assert memory._available() == free
