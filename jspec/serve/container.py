# SPDX-License-Identifier: MIT
"""Memory that Linux control groups leave to this process.

Containers, Kubernetes and systemd limit a process below what the machine has
free; it is killed, not told, when it takes more. Every group above counts:

  room   min over the groups of (limit - used + file cache it can drop)

Both versions of the interface are read (docs of Linux: cgroup-v2, cgroup-v1).
"""

import pathlib

ROOT = pathlib.Path('/sys/fs/cgroup')
OWN = pathlib.Path('/proc/self/cgroup')


def room(root: pathlib.Path = ROOT, own: pathlib.Path = OWN) -> int | None:
  """Bytes that the groups of this process leave; None where none limits it.

  Args:
    root: where control groups are mounted.
    own: says which are this process's.
  """
  try:
    lines = own.read_text(encoding='utf-8').splitlines()
  except OSError:
    return None
  rooms = []
  for line in lines:
    _, controllers, path = line.split(':', 2)
    if not controllers:
      names = 'memory.max', 'memory.current', 'inactive_file'
      base = root
    elif 'memory' in controllers.split(','):
      names = (
        'memory.limit_in_bytes',
        'memory.usage_in_bytes',
        'total_inactive_file',
      )
      base = root / 'memory'
    else:
      continue
    # A container may see its own group as the root, wherever that lies.
    group = base / path.strip('/')
    if not group.is_dir() or '..' in group.parts:
      group = base
    for folder in (group, *group.parents):
      rooms.append(_room(folder, *names))
      if folder == base:
        break
  return min((one for one in rooms if one is not None), default=None)


def _room(folder, limit, used, droppable):
  """What one group leaves; None if it has no limit."""
  try:
    text = (folder / limit).read_text(encoding='utf-8').strip()
    if text == 'max':
      return None
    taken = int((folder / used).read_text(encoding='utf-8'))
    cache = 0
    for line in (folder / 'memory.stat').read_text('utf-8').splitlines():
      name, _, value = line.partition(' ')
      if name == droppable:
        cache = int(value)
  except OSError:
    return None  # The root of version 2 has no such files.
  return max(int(text) - taken + cache, 0)
