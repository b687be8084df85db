// The official JavaScript SDK 1.x, which speaks 1.0 and by its compatibility layer 0.3, over all three bindings.
import { randomUUID } from 'node:crypto';
import { appendFileSync } from 'node:fs';
import { Server, ServerCredentials } from '@grpc/grpc-js';
import express from 'express';
import { AGENT_CARD_PATH, Role, TaskState } from '@a2a-js/sdk';
import { AgentEvent, DefaultRequestHandler, InMemoryTaskStore } from '@a2a-js/sdk/server';
import { UserBuilder, agentCardHandler, jsonRpcHandler, restHandler } from '@a2a-js/sdk/server/express';
import { A2AService, grpcService } from '@a2a-js/sdk/server/grpc';
import {
  ClientFactory,
  DefaultAgentCardResolver,
  JsonRpcTransportFactory,
  RestTransportFactory,
} from '@a2a-js/sdk/client';
import { GrpcTransportFactory } from '@a2a-js/sdk/client/grpc';

const legacyCompat = { enabled: true };
const userBuilder = UserBuilder.noAuthentication;

const note = (what) => process.env.INTEROP_NOTES && appendFileSync(process.env.INTEROP_NOTES, `${what}\n`);
const part = (text) => ({ content: { $case: 'text', value: text }, metadata: undefined, filename: '', mediaType: '' });
const textOf = (artifact) =>
  artifact.parts.map((one) => (one.content?.$case === 'text' ? one.content.value : '')).join('');

class Talker {
  hung = new Map();

  async execute(context, bus) {
    const { taskId, contextId, userMessage } = context;
    const said = userMessage.parts.map((one) => one.content?.value ?? '').join('');
    const [verb, ...rest] = said.split(' ');
    const pieces = verb === 'story' ? ['Once ', 'upon ', rest.join(' ')] : [`echo: ${said}`];
    const status = (state, message) => ({ state, message, timestamp: new Date().toISOString() });
    bus.publish(
      AgentEvent.task(
        context.task ?? {
          id: taskId,
          contextId,
          status: status(TaskState.TASK_STATE_SUBMITTED),
          artifacts: [],
          history: [userMessage],
          metadata: undefined,
        }
      )
    );
    const end = (state, text) => {
      const message = {
        messageId: randomUUID(),
        role: Role.ROLE_AGENT,
        parts: [part(text)],
        taskId,
        contextId,
        metadata: undefined,
        extensions: [],
        referenceTaskIds: [],
      };
      bus.publish(AgentEvent.statusUpdate({ taskId, contextId, status: status(state, message), metadata: undefined }));
      bus.finished();
    };
    if (verb === 'fail') return end(TaskState.TASK_STATE_FAILED, 'the oven is cold');
    if (verb === 'ask') return end(TaskState.TASK_STATE_INPUT_REQUIRED, 'Which size?');
    if (verb === 'hang') {
      note('running');
      await new Promise((resolve) => this.hung.set(taskId, resolve));
      return end(TaskState.TASK_STATE_CANCELED, 'cancelled');
    }
    pieces.forEach((text, number) =>
      bus.publish(
        AgentEvent.artifactUpdate({
          taskId,
          contextId,
          artifact: {
            artifactId: 'tale',
            name: '',
            description: '',
            parts: [part(text)],
            metadata: undefined,
            extensions: [],
          },
          append: number > 0,
          lastChunk: number === pieces.length - 1,
          metadata: undefined,
        })
      )
    );
    const done = { taskId, contextId, status: status(TaskState.TASK_STATE_COMPLETED), metadata: undefined };
    bus.publish(AgentEvent.statusUpdate(done));
    bus.finished();
  }

  cancelTask = async (taskId) => {
    note('cancelled');
    this.hung.get(taskId)?.();
  };
}

function serve(port, grpcPort) {
  const url = `http://127.0.0.1:${port}`;
  const face = (protocolBinding, address, protocolVersion) => ({
    url: address,
    protocolBinding,
    protocolVersion,
    tenant: '',
  });
  const card = {
    name: 'Talker',
    description: 'Echoes, and tells stories in pieces.',
    version: '1',
    supportedInterfaces: [
      face('JSONRPC', `${url}/rpc`, '1.0'),
      face('HTTP+JSON', `${url}/rest`, '1.0'),
      face('JSONRPC', `${url}/rpc`, '0.3'),
      face('HTTP+JSON', `${url}/rest`, '0.3'),
      face('GRPC', `127.0.0.1:${grpcPort}`, '1.0'),
    ],
    provider: undefined,
    capabilities: { streaming: true, extensions: [] },
    securitySchemes: {},
    securityRequirements: [],
    defaultInputModes: ['text/plain'],
    defaultOutputModes: ['text/plain'],
    skills: [
      {
        id: 'talk',
        name: 'Talk',
        description: 'Talks',
        tags: ['talk'],
        examples: [],
        inputModes: [],
        outputModes: [],
        securityRequirements: [],
      },
    ],
    signatures: [],
  };
  const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), new Talker());
  const app = express();
  app.use(`/${AGENT_CARD_PATH}`, agentCardHandler({ agentCardProvider: requestHandler, legacyCompat }));
  app.use('/rpc', jsonRpcHandler({ requestHandler, userBuilder, legacyCompat }));
  app.use('/rest', restHandler({ requestHandler, userBuilder, legacyCompat }));
  app.listen(port, '127.0.0.1');
  const beside = new Server();
  beside.addService(A2AService, grpcService({ requestHandler, userBuilder }));
  beside.bindAsync(`127.0.0.1:${grpcPort}`, ServerCredentials.createInsecure(), () => {});
}

const message = (text) => ({
  tenant: '',
  message: {
    messageId: randomUUID(),
    contextId: '',
    taskId: '',
    role: Role.ROLE_USER,
    parts: [part(text)],
    metadata: undefined,
    extensions: [],
    referenceTaskIds: [],
  },
  configuration: undefined,
  metadata: undefined,
});

async function ask(url, binding, version) {
  const card = await new DefaultAgentCardResolver({ legacyCompat }).resolve(url, '');
  card.supportedInterfaces = card.supportedInterfaces.filter(
    (one) => one.protocolBinding === binding && one.protocolVersion.startsWith(version)
  );
  const transports = [JsonRpcTransportFactory, RestTransportFactory, GrpcTransportFactory].map(
    (Factory) => new Factory({ legacyCompat })
  );
  const client = await new ClientFactory({ transports }).createFromAgentCard(card);
  const reply = await client.sendMessage(message('hello'));
  const stream = [];
  for await (const one of client.sendMessageStream(message('story time'))) {
    if (one.payload?.$case === 'artifactUpdate') stream.push(textOf(one.payload.value.artifact));
  }
  return { unary: reply.artifacts.map(textOf).join(''), stream };
}

const [what, ...given] = process.argv.slice(2);
if (what === 'serve') {
  serve(Number(given[0]), Number(given[1]));
} else {
  console.log(JSON.stringify(await ask(...given)));
  process.exit(0);
}
