// The official JavaScript SDK 0.3.x, over JSON-RPC and REST.
import { randomUUID } from 'node:crypto';
import { appendFileSync } from 'node:fs';
import express from 'express';
import { AGENT_CARD_PATH } from '@a2a-js/sdk';
import { DefaultRequestHandler, InMemoryTaskStore } from '@a2a-js/sdk/server';
import { UserBuilder, agentCardHandler, jsonRpcHandler, restHandler } from '@a2a-js/sdk/server/express';
import { ClientFactory, JsonRpcTransportFactory, RestTransportFactory } from '@a2a-js/sdk/client';

const textOf = (artifact) => artifact.parts.map((one) => one.text ?? '').join('');

const note = (what) => process.env.INTEROP_NOTES && appendFileSync(process.env.INTEROP_NOTES, `${what}\n`);

class Talker {
  hung = new Map();

  async execute(context, bus) {
    const { taskId, contextId, userMessage } = context;
    const said = userMessage.parts.map((one) => one.text ?? '').join('');
    const [verb, ...rest] = said.split(' ');
    const pieces = verb === 'story' ? ['Once ', 'upon ', rest.join(' ')] : [`echo: ${said}`];
    const status = (state, message) => ({ state, message, timestamp: new Date().toISOString() });
    if (!context.task)
      bus.publish({ kind: 'task', id: taskId, contextId, status: status('submitted'), history: [userMessage] });
    const end = (state, text) => {
      const parts = [{ kind: 'text', text }];
      const message = { kind: 'message', messageId: randomUUID(), role: 'agent', parts, taskId, contextId };
      bus.publish({ kind: 'status-update', taskId, contextId, status: status(state, message), final: true });
      bus.finished();
    };
    if (verb === 'fail') return end('failed', 'the oven is cold');
    if (verb === 'ask') return end('input-required', 'Which size?');
    if (verb === 'hang') {
      note('running');
      await new Promise((resolve) => this.hung.set(taskId, resolve));
      return end('canceled', 'cancelled');
    }
    pieces.forEach((text, number) =>
      bus.publish({
        kind: 'artifact-update',
        taskId,
        contextId,
        artifact: { artifactId: 'tale', parts: [{ kind: 'text', text }] },
        append: number > 0,
        lastChunk: number === pieces.length - 1,
      })
    );
    bus.publish({ kind: 'status-update', taskId, contextId, status: status('completed'), final: true });
    bus.finished();
  }

  cancelTask = async (taskId) => {
    note('cancelled');
    this.hung.get(taskId)?.();
  };
}

function serve(port) {
  const url = `http://127.0.0.1:${port}`;
  const card = {
    name: 'Talker',
    description: 'Echoes, and tells stories in pieces.',
    protocolVersion: '0.3.0',
    version: '1',
    url: `${url}/rpc`,
    preferredTransport: 'JSONRPC',
    additionalInterfaces: [{ url: `${url}/rest`, transport: 'HTTP+JSON' }],
    capabilities: { streaming: true },
    defaultInputModes: ['text/plain'],
    defaultOutputModes: ['text/plain'],
    skills: [{ id: 'talk', name: 'Talk', description: 'Talks', tags: ['talk'] }],
  };
  const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), new Talker());
  const userBuilder = UserBuilder.noAuthentication;
  const app = express();
  app.use(`/${AGENT_CARD_PATH}`, agentCardHandler({ agentCardProvider: requestHandler }));
  app.use('/rpc', jsonRpcHandler({ requestHandler, userBuilder }));
  app.use('/rest', restHandler({ requestHandler, userBuilder }));
  app.listen(port, '127.0.0.1');
}

const message = (text) => ({
  message: { kind: 'message', messageId: randomUUID(), role: 'user', parts: [{ kind: 'text', text }] },
});

async function ask(url, binding) {
  const transports = [binding === 'JSONRPC' ? new JsonRpcTransportFactory() : new RestTransportFactory()];
  const client = await new ClientFactory({ transports }).createFromUrl(url, '');
  const reply = await client.sendMessage(message('hello'));
  const stream = [];
  for await (const one of client.sendMessageStream(message('story time'))) {
    if (one.kind === 'artifact-update') stream.push(textOf(one.artifact));
  }
  return { unary: reply.artifacts.map(textOf).join(''), stream };
}

const [what, ...given] = process.argv.slice(2);
if (what === 'serve') {
  serve(Number(given[0]));
} else {
  console.log(JSON.stringify(await ask(...given)));
  process.exit(0);
}
