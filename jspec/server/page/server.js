// SPDX-License-Identifier: MIT
/** Talks to the server: requests with the key, errors as one line, events. */

export async function call(path, key, options = {}) {
    if (!/^[ -~]*$/.test(key)) {
    throw new Error('the API key holds characters that no key has');
  }
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Error('the server cannot be reached; see whether it runs');
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const said = body?.error?.message ?? `the server says ${response.status}`;
  throw Object.assign(new Error(said), { status: response.status });
}

/** Yields the JSON of each event of a stream. */
export async function* events(response) {
  const reader = response.body
    .pipeThrough(new TextDecoderStream())
    .getReader();
  for (let rest = ''; ; ) {
    let read;
    try {
      read = await reader.read();
    } catch (error) {
      if (error.name === 'AbortError') throw error;
      throw new Error('the connection broke before the answer ended');
    }
    if (read.done) {
      throw new Error('the server closed before the answer ended');
    }
    const parts = (rest + read.value).split('\n\n');
    rest = parts.pop();
    for (const part of parts) {
      if (part === 'data: [DONE]') return;
      if (part.startsWith('data: ')) yield JSON.parse(part.slice(6));
    }
  }
}
