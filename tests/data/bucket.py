# SPDX-License-Identifier: MIT
"""A bucket in memory, reached the way a real one is: epath, fsspec, `gs://`."""

import contextlib

import fsspec
from etils.epath import backend
from fsspec.implementations import memory
from fsspec.registry import _registry


class Bucket(memory.MemoryFileSystem):
  """What `gcsfs` is to fsspec; `is_down` makes every call fail."""

  protocol = ('gcs', 'gs')
  store = {}
  pseudo_dirs = ['']
  is_down = False

  @classmethod
  def _strip_protocol(cls, path):
    return super()._strip_protocol(str(path).removeprefix('gs://'))

  def ls(self, path, detail=True, **kwargs):
    if self.is_down:
      raise RuntimeError('no credentials\nwere found')
    return super().ls(path, detail, **kwargs)

  def _open(self, path, mode='rb', **kwargs):
    if self.is_down:
      raise OSError('503')
    return super()._open(path, mode, **kwargs)


@contextlib.contextmanager
def mounted():
  """Makes `gs://` this bucket, empty at first."""
  fsspec.register_implementation('gcs', Bucket, clobber=True)
  forget = backend._FileSystemSpecBackend._get_filesystem.cache_clear
  forget()
  Bucket.store.clear()
  Bucket.pseudo_dirs[:] = ['']
  Bucket.is_down = False
  try:
    yield Bucket
  finally:
    _registry.pop('gcs', None)
    forget()
