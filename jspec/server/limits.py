# SPDX-License-Identifier: MIT
"""`Limits`: what one client may ask of the server, and who may ask at all."""

import dataclasses
import hmac

from starlette import types
from starlette.datastructures import Headers

from jspec import errors
from jspec.server import errors as api_errors
from jspec.server.page import page

# Of those who may change what is served.
ADMIN = '/v1/jspec/drafters'
# Whoever operates the server asks these, without a key.
# The page shows nothing without one.
OPEN = ('/health', '/ready', '/metrics', '/openapi.json', *page.FILES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
  """Sizes and seconds.

  Attributes:
    max_queue: answers that wait for a row; the next is refused with 429.
    max_body: bytes of a body.
    body_s: seconds for it to come.
    request_s: seconds for a whole request.
    grace_s: seconds for what was accepted, when the server stops.
    api_keys: whoever has one of them may ask; empty: everybody may.
    admin_keys: whoever has one of them may swap drafters; empty: nobody may.
  """

  max_queue: int = 256
  max_body: int = 4 * 1024 * 1024
  body_s: float = 30.0
  request_s: float = 600.0
  grace_s: float = 30.0
  api_keys: tuple[str, ...] = ()
  admin_keys: tuple[str, ...] = ()

  def __post_init__(self):
    for name in ('max_queue', 'grace_s'):
      if getattr(self, name) < 0:
        raise errors.UserError(f'{name}: give 0 or more')
    for name in ('max_body', 'body_s', 'request_s'):
      if getattr(self, name) <= 0:
        raise errors.UserError(f'{name}: give more than 0')
    keys = (*self.api_keys, *self.admin_keys)
    if not all(key.strip() and key.isascii() for key in keys):
      raise errors.UserError(
        'a key is empty or not ASCII; give one that a header can carry'
      )


class Keys:
  """ASGI middleware that lets in whoever has a key."""

  def __init__(
    self,
    app: types.ASGIApp,
    api_keys: tuple[str, ...],
    admin_keys: tuple[str, ...] = (),
  ):
    self._app = app
    self._keys = [key.encode() for key in api_keys]
    self._admin_keys = [key.encode() for key in admin_keys]

  async def __call__(
    self, scope: types.Scope, receive: types.Receive, send: types.Send
  ) -> None:
    """Passes on, or answers 401."""
    if scope['type'] != 'http' or self._may(scope):
      await self._app(scope, receive, send)
      return
    kind = 'admin key' if self._is_admin(scope) else 'API key'
    error = api_errors.ApiError(
      401,
      f'a valid {kind} is missing; send it as `Authorization: Bearer KEY`',
      code='invalid_api_key',
    )
    response = error.response()
    response.headers['WWW-Authenticate'] = 'Bearer'
    await response(scope, receive, send)

  def _is_admin(self, scope):
    return bool(self._admin_keys) and scope['path'].startswith(ADMIN)

  def _may(self, scope):
    is_admin = self._is_admin(scope)
    keys = self._admin_keys if is_admin else self._keys
    if not keys or scope['path'] in OPEN:
      return True
    said = Headers(scope=scope).get('authorization', '')
    kind, _, key = said.partition(' ')
    given = key.strip().encode('latin-1')
    # All are compared, each in constant time, so that time tells nothing.
    found = [hmac.compare_digest(given, known) for known in keys]
    return kind.lower() == 'bearer' and any(found)
