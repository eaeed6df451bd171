# SPDX-License-Identifier: MIT
"""The import graph, as data: imports only go down, and nothing goes in circles.

Imports are read from the source, those inside functions too, so that a late
import cannot hide one that goes up.
"""

import ast
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]

# What the modules of a layer may import besides their own. A layer is a package
# of jspec, a module of it, or a single module that must be told apart.
_BASE = {'errors', 'typing'}
_VALUES = _BASE | {'kernels', 'tree', 'packing', 'cache'}
_MODEL = _VALUES | {'nn'}
_TRAINED = _MODEL | {'targets', 'checkpoints', 'drafters', 'trees'}
_OUTPUT = {'metrics', 'provenance'}
_LOADED = _TRAINED | {'text', 'data', 'decode', 'opening', 'loading'}
_EVERYTHING = _LOADED | _OUTPUT | {'config', 'conversation', 'distributed'}
_EVERYTHING |= {'slices', 'flops'}
ALLOWED = {
  '': set(),  # jspec/__init__.py
  'errors': set(),
  'typing': set(),
  'distributed': _BASE | {'relay'},
  'relay': set(),
  'supervised': set(),
  'rendezvous': _BASE,
  'lifeline': {'rendezvous'},
  'slices': _BASE,
  'flops': _BASE,
  'config': {'errors'},
  'provenance': _BASE,
  'metrics': _BASE,
  'kernels': _BASE,
  'tree': _BASE,
  'packing': _BASE | {'kernels'},
  'cache': _BASE | {'kernels', 'tree'},
  'nn': _VALUES,
  'trees': _BASE | {'tree'},
  'depth': _BASE | {'tree'},
  'targets': _MODEL | {'checkpoints'},
  'checkpoints': _BASE | {'supervised'},
  'drafters': _MODEL | {'targets', 'checkpoints', 'trees'},
  'decode': _TRAINED,
  'routing': _BASE,
  'serve': _TRAINED | {'decode', 'depth', 'text', 'rendezvous'},
  # HTTP: it knows the engine, and nothing of models.
  'server': _BASE | {'decode', 'depth', 'routing', 'serve', 'text'},
  'text': _BASE,
  'data': _BASE | {'supervised', 'text'},
  'train': (
    _TRAINED
    | _OUTPUT
    | {'text', 'data', 'config', 'supervised', 'slices', 'flops'}
  ),
  'opening': _TRAINED | {'text'},
  'loading': _TRAINED | {'text', 'opening'},
  'conversation': _LOADED,
  'testing': _TRAINED | {'decode', 'text', 'routing'},
  'evals': _EVERYTHING | {'depth', 'serve'},
  'bench': _EVERYTHING | {'depth', 'serve', 'server', 'sim', 'train'},
  'demo': _EVERYTHING | {'train', 'evals'},
  'bakeoff': _EVERYTHING | {'train', 'evals'},
  'doctor': _EVERYTHING | {'train', 'evals'},
  'sim': _BASE | {'depth'},
  'cli': (
    _EVERYTHING
    | {'train', 'train.main', 'evals', 'bench', 'demo', 'bakeoff', 'doctor'}
    | {'sim', 'serve', 'depth', 'server', 'lifeline'}
  ),
  'programs': {'cli'},
  # The entry point of training; it alone opens models.
  'train.main': _EVERYTHING | {'train'},
}
# Whose imports from outside are few, by first name.
OUTSIDE = {
  'errors': set(),
  'typing': {'jaxtyping'},
  'config': {'ml_collections'},
  'kernels': {'jax', 'jaxtyping', 'numpy'},
  'tree': {'jax', 'jaxtyping', 'numpy'},
  'packing': {'jax'},
  'depth': {'jax', 'numpy'},
  'trees': {'jax', 'jaxtyping', 'numpy'},
  'cache': {'jax', 'jaxtyping', 'numpy'},
  'routing': set(),
  'cli': set(),
  'programs': set(),
}
# Programs start the command line, which stands above their package.
PROGRAMS = {'capture', 'export', 'generate', 'import', 'profile'}


def modules() -> dict[str, pathlib.Path]:
  """All modules, by import name: `jspec.kernels` lies in kernels/."""
  found = {}
  for folder, package in (('jspec', 'jspec'), ('kernels', 'jspec.kernels')):
    for path in sorted((ROOT / folder).rglob('*.py')):
      parts = path.relative_to(ROOT / folder).with_suffix('').parts
      if parts[-1] == '__init__':
        parts = parts[:-1]
      found['.'.join((package, *parts))] = path
  return found


def layer(name: str) -> str:
  """The layer of a module: its package, or itself at the top of jspec."""
  inside = name.removeprefix('jspec').removeprefix('.')
  if inside in PROGRAMS or inside.endswith('__main__'):
    return 'programs'
  return inside if inside in ALLOWED else inside.split('.')[0]


def imports(
  source: str, name: str, known: set[str], *, is_package: bool = False
) -> tuple[set[str], set[str]]:
  """Modules of jspec, and first names of other packages, that are imported."""
  ours, others = set(), set()
  for node in ast.walk(ast.parse(source)):
    names = []
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      parent = node.module or ''
      if node.level:
        up = name.split('.')
        up = up[: len(up) - node.level + is_package]
        parent = '.'.join([*up, *([parent] if parent else [])])
      # `from jspec import x` names a module, `from x import Name` may not.
      for alias in node.names:
        full = f'{parent}.{alias.name}'
        names.append(full if full in known else parent)
    for imported in names:
      if imported.split('.')[0] == 'jspec':
        ours.add(imported)
      else:
        others.add(imported.split('.')[0])
  return ours, others


def violations(graph: dict[str, set[str]]) -> list[str]:
  """Imports that go up or aside."""
  found = []
  for name, imported in graph.items():
    mine = layer(name)
    for other in sorted(imported):
      theirs = layer(other)
      if theirs not in ALLOWED[mine] | {mine, ''}:
        found.append(f'{name} ({mine}) imports {other} ({theirs})')
  return found


def cycle(graph: dict[str, set[str]]) -> list[str]:
  """A circle of imports, or nothing."""
  finished, path = set(), []

  def visit(name):
    if name in path:
      return [*path[path.index(name) :], name]
    if name in finished:
      return []
    path.append(name)
    for other in sorted(graph.get(name, ())):
      found = visit(other)
      if found:
        return found
    finished.add(path.pop())
    return []

  for name in graph:
    found = visit(name)
    if found:
      return found
  return []


def read() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
  """The graph inside jspec, and what each module imports from outside."""
  paths = modules()
  inside, outside = {}, {}
  for name, path in paths.items():
    inside[name], outside[name] = imports(
      path.read_text(encoding='utf-8'),
      name,
      set(paths),
      is_package=path.name == '__init__.py',
    )
  return inside, outside


def test_every_module_belongs_to_a_layer():
  assert [name for name in modules() if layer(name) not in ALLOWED] == []


def test_imports_go_down():
  assert violations(read()[0]) == []


def test_imports_name_modules_that_exist():
  graph = read()[0]
  missing = {other for imported in graph.values() for other in imported}
  assert missing - set(graph) == set()


def test_imports_do_not_go_in_circles():
  assert cycle(read()[0]) == []


def test_processes_are_joined_in_one_place():
  text = 'distributed.initialize('
  found = [name for name, path in modules().items() if text in path.read_text()]
  assert found == ['jspec.distributed']


def test_low_layers_import_little_from_outside():
  found = []
  for name, others in read()[1].items():
    allowed = OUTSIDE.get(layer(name))
    if allowed is not None:
      extra = others - allowed - sys.stdlib_module_names
      found += [f'{name} imports {other}' for other in sorted(extra)]
  assert found == []


def test_configs_import_ml_collections_and_config_only():
  known = set(modules())
  for path in sorted((ROOT / 'configs').rglob('*.py')):
    ours, others = imports(path.read_text(encoding='utf-8'), path.stem, known)
    assert ours <= {'jspec.config', 'jspec.train.defaults'}, path
    assert others - sys.stdlib_module_names <= {'ml_collections'}, path


@pytest.mark.parametrize(
  'source, expected',
  [
    ('from jspec import loading', {'jspec.loading'}),
    ('import jspec.decode.round', {'jspec.decode.round'}),
    ('def f():\n  from jspec.decode import round', {'jspec.decode.round'}),
    ('from jspec.errors import UserError', {'jspec.errors'}),
    ('from . import round', {'jspec.train.round'}),
    ('from ..decode import round', {'jspec.decode.round'}),
  ],
)
def test_imports_are_seen_however_they_are_written(source, expected):
  known = {'jspec.loading', 'jspec.decode.round', 'jspec.errors'}
  known |= {'jspec.train.round'}
  assert imports(source, 'jspec.train.step', known)[0] == expected


def test_violations_are_found_when_there_are_some():
  assert violations({'jspec.train.step': {'jspec.decode.round'}})
  assert violations({'jspec.tree': {'jspec.targets.base'}})
  assert not violations({'jspec.decode.round': {'jspec.tree'}})


def test_cycle_is_found_when_there_is_one():
  assert cycle({'a': {'b'}, 'b': {'c'}, 'c': {'a'}})
  assert not cycle({'a': {'b', 'c'}, 'b': {'c'}})
