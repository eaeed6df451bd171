# SPDX-License-Identifier: MIT
"""A world in which launch scripts run."""

import pytest

from tests.launch import pretended


@pytest.fixture
def world(tmp_path):
  return pretended.World(tmp_path)
