# SPDX-License-Identifier: MIT
"""Serves the page: a few files, and nothing from anywhere else.

  index.html   the frame of the page
  page.css     light, dark, wide, narrow
  page.js      asks, and puts answers into the frame as text
  server.js, answer.js, charts.js, nodes.js    its parts, as modules

What a browser may do with them is said by a policy that it enforces: scripts,
styles and requests are this server's own, nothing is inlined, and no other page
may frame this one. A model that answers with HTML is shown as text, and could
load nothing if it were not.
"""

import pathlib

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

HEADERS = {
  'Content-Security-Policy': '; '.join(
    [
      "default-src 'none'",
      "script-src 'self'",
      "style-src 'self'",
      "connect-src 'self'",
      'img-src data:',  # The icon.
      "base-uri 'none'",
      "form-action 'none'",
      "frame-ancestors 'none'",
    ]
  ),
  'X-Content-Type-Options': 'nosniff',
  'Referrer-Policy': 'no-referrer',
  'Cache-Control': 'no-cache',
}
_SCRIPTS = ('page.js', 'answer.js', 'charts.js', 'nodes.js', 'server.js')
# By path: name, and what it is.
FILES = {
  '/': ('index.html', 'text/html'),
  '/page.css': ('page.css', 'text/css'),
  **{f'/{name}': (name, 'text/javascript') for name in _SCRIPTS},
}


def add(app: FastAPI) -> None:
  """Adds the routes of the page, which is read once."""
  folder = pathlib.Path(__file__).parent
  for path, (name, media_type) in FILES.items():
    app.add_route(
      path,
      _answering((folder / name).read_bytes(), media_type),
      include_in_schema=False,
    )


def _answering(content, media_type):
  async def answer(request: Request) -> Response:
    del request
    return Response(content, media_type=media_type, headers=HEADERS)

  return answer
