# SPDX-License-Identifier: MIT
"""HTTP over the engine, in OpenAI's shapes: `app.create` makes the server."""
