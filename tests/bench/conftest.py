# SPDX-License-Identifier: MIT
"""What these tests run under."""

import pytest

from tests.evals import unchecked


@pytest.fixture(scope='module', autouse=True)
def unchecked_constructors():
  with unchecked.constructors():
    yield
