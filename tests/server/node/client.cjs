// SPDX-License-Identifier: MIT
// Drives a server with the official client; prints what it understood as JSON.
// Usage: node client.cjs URL

const OpenAI = require('openai');

const client = new OpenAI({
  baseURL: process.argv[2] + '/v1',
  apiKey: 'secret',
  maxRetries: 0,
});
const base = { model: 'fake', temperature: 0 };
const messages = [{ role: 'user', content: 'Hi' }];

async function collected(stream) {
  const found = [];
  for await (const event of stream) found.push(event);
  return found;
}

async function refusal(work) {
  try {
    await work();
    return null;
  } catch (error) {
    const { status, param, code, message } = error;
    return { kind: error.constructor.name, status, param, code, message };
  }
}

async function stopped() {
  const stream = await client.chat.completions.create({
    ...base, messages: [{ role: 'user', content: 'long' }], stream: true,
  });
  for await (const chunk of stream) {
    stream.controller.abort();
    return chunk.object;
  }
}

async function main() {
  const { completions, chat, responses, models } = client;
  const found = {
    models: (await collected(await models.list())).map((model) => model.id),
    model: await models.retrieve('alias'),
    completion: await completions.create({
      ...base, prompt: 'Hi', n: 2, logprobs: 2, echo: true,
    }),
    completionChunks: await collected(await completions.create({
      ...base, prompt: 'Hi', stream: true,
      stream_options: { include_usage: true },
    })),
    chat: await chat.completions.create({
      ...base, messages, logprobs: true, top_logprobs: 2,
      speculative: { details: true },
    }),
    chatChunks: await collected(await chat.completions.create({
      ...base, messages, stream: true,
    })),
    response: await responses.create({ ...base, input: 'Hi' }),
    responseEvents: await collected(await responses.create({
      ...base, input: 'Hi', stream: true,
    })),
    tokens: await client.post('/../tokenize', { body: { prompt: 'Hi' } }),
    refusals: [
      await refusal(() => completions.create({ ...base, prompt: '' })),
      await refusal(() => chat.completions.create({
        ...base, messages, audio: { voice: 'alloy' },
      })),
      await refusal(() => chat.completions.create({
        ...base, model: 'absent', messages,
      })),
    ],
    stopped: await stopped(),
  };
  process.stdout.write(JSON.stringify(found));
}

main();
