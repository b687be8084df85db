// The tools, resources and prompts that the protocol's kit looks for, on the official TypeScript SDK: `VERSION PORT`, where
// VERSION is 1 or 2, serves them at /mcp.
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { z } from 'zod';

const isFirst = process.argv[2] === '1';
const { McpServer, ResourceTemplate } = await import(
  isFirst ? '@modelcontextprotocol/sdk/server/mcp.js' : '@modelcontextprotocol/server'
);
const Transport = isFirst
  ? (await import('@modelcontextprotocol/sdk/server/streamableHttp.js')).StreamableHTTPServerTransport
  : (await import('@modelcontextprotocol/node')).NodeStreamableHTTPServerTransport;
const PNG = Buffer.from('\x89PNG\r\n\x1a\n', 'latin1').toString('base64');
const WAV = Buffer.from('RIFF$\0\0\0WAVEfmt ', 'latin1').toString('base64');
const text = (said) => ({ type: 'text', text: said });
const image = { type: 'image', data: PNG, mimeType: 'image/png' };
const pause = () => new Promise((resolve) => setTimeout(resolve, 50));
const shape = (fields) => (isFirst ? fields : z.object(fields));

class Events {
  kept = [];
  async storeEvent(stream, message) {
    this.kept.push([stream, message]);
    return String(this.kept.length);
  }
  async getStreamIdForEventId(id) {
    return this.kept[Number(id) - 1]?.[0];
  }
  async replayEventsAfter(id, { send }) {
    const stream = this.kept[Number(id) - 1]?.[0] ?? '';
    for (const [number, [where, message]] of this.kept.entries())
      if (number >= Number(id) && where === stream && Object.keys(message).length) await send(String(number + 1), message);
    return stream;
  }
}

function build() {
  const capabilities = { logging: {}, tools: {}, resources: { subscribe: true }, prompts: {} };
  const server = new McpServer({ name: 'everything', version: '1' }, { capabilities });
  const tool = (name, run, fields) => {
    const config = { description: name, ...(fields && { inputSchema: shape(fields) }) };
    server.registerTool(name, config, async (...given) => {
      const context = given.at(-1);
      const found = await run(fields ? given[0] : {}, {
        token: (isFirst ? context : context.mcpReq)._meta?.progressToken,
        notify: (method, params) =>
          isFirst ? context.sendNotification({ method, params }) : context.mcpReq.notify({ method, params }),
        elicit: (params) =>
          isFirst
            ? server.server.elicitInput(params, { relatedRequestId: context.requestId })
            : context.mcpReq.elicitInput(params),
        sample: (params) =>
          isFirst
            ? server.server.createMessage(params, { relatedRequestId: context.requestId })
            : context.mcpReq.requestSampling(params),
      });
      return { content: Array.isArray(found) ? found : [found] };
    });
  };
  const embedded = (uri, said, mimeType) => ({ type: 'resource', resource: { uri, mimeType, text: said } });
  tool('test_simple_text', () => text('This is a simple text response for testing.'));
  tool('test_image_content', () => image);
  tool('test_audio_content', () => ({ type: 'audio', data: WAV, mimeType: 'audio/wav' }));
  tool('test_embedded_resource', () =>
    embedded('test://embedded-resource', 'This is an embedded resource content.', 'text/plain'),
  );
  tool('test_multiple_content_types', () => [
    text('Multiple content types test:'),
    image,
    embedded('test://mixed-content-resource', '{"test":"data","value":123}', 'application/json'),
  ]);
  tool('test_tool_with_logging', async (_, { notify }) => {
    for (const data of ['Tool execution started', 'Tool processing data', 'Tool execution completed']) {
      await notify('notifications/message', { level: 'info', data });
      await pause();
    }
    return text('Tool with logging executed successfully');
  });
  tool('test_tool_with_progress', async (_, { notify, token }) => {
    for (const progress of [0, 50, 100]) {
      if (token !== undefined) await notify('notifications/progress', { progressToken: token, progress, total: 100 });
      await pause();
    }
    return text(String(token ?? 0));
  });
  tool('test_error_handling', () => {
    throw new Error('This tool intentionally returns an error for testing');
  });
  tool('test_sampling', async ({ prompt }, { sample }) => {
    const messages = [{ role: 'user', content: text(prompt) }];
    const answer = await sample({ messages, maxTokens: 100 });
    return text(`LLM response: ${answer.content.text ?? answer.content[0]?.text}`);
  }, { prompt: z.string() });
  const ask = (properties, required) => async ({ message }, { elicit }) => {
    const requestedSchema = { type: 'object', properties, required };
    const answer = await elicit({ message: message ?? 'Please answer', requestedSchema });
    return text(`Elicitation completed: action=${answer.action}, content=${JSON.stringify(answer.content)}`);
  };
  const person = { username: { type: 'string' }, email: { type: 'string' } };
  tool('test_elicitation', ask(person, ['username', 'email']), { message: z.string() });
  const defaults = {
    name: { type: 'string', default: 'John Doe' },
    age: { type: 'integer', default: 30 },
    score: { type: 'number', default: 95.5 },
    status: { type: 'string', enum: ['active', 'inactive', 'pending'], default: 'active' },
    verified: { type: 'boolean', default: true },
  };
  tool('test_elicitation_sep1034_defaults', ask(defaults, []));
  server.registerResource('text', 'test://static-text', { mimeType: 'text/plain' }, async (uri) => ({
    contents: [{ uri: uri.href, mimeType: 'text/plain', text: 'This is the content of the static text resource.' }],
  }));
  server.registerResource('binary', 'test://static-binary', { mimeType: 'image/png' }, async (uri) => ({
    contents: [{ uri: uri.href, mimeType: 'image/png', blob: PNG }],
  }));
  const template = new ResourceTemplate('test://template/{id}/data', { list: undefined });
  server.registerResource('template', template, { mimeType: 'application/json' }, async (uri, { id }) => ({
    contents: [{ uri: uri.href, mimeType: 'application/json', text: JSON.stringify({ id, templateTest: true }) }],
  }));
  const said = (words) => ({ messages: [{ role: 'user', content: text(words) }] });
  server.registerPrompt('test_simple_prompt', { description: 'Without arguments' }, () =>
    said('This is a simple prompt for testing.'),
  );
  const argsSchema = shape({ arg1: z.string(), arg2: z.string() });
  server.registerPrompt('test_prompt_with_arguments', { description: 'With two', argsSchema }, ({ arg1, arg2 }) =>
    said(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`),
  );
  return server;
}

async function readBody(request) {
  const pieces = [];
  for await (const piece of request) pieces.push(piece);
  try {
    return JSON.parse(Buffer.concat(pieces).toString() || 'null');
  } catch {
    return undefined;
  }
}

// The modern era, which 1.x does not have.
const modern = isFirst ? undefined : await serveModern();
async function serveModern() {
  const { classifyInboundRequest, createMcpHandler } = await import('@modelcontextprotocol/server');
  const { toNodeHandler } = await import('@modelcontextprotocol/node');
  const handle = toNodeHandler(createMcpHandler(build));
  return async (request, response, body) => {
    const { headers, method } = request;
    const found = classifyInboundRequest({
      httpMethod: method,
      protocolVersionHeader: headers['mcp-protocol-version'],
      mcpMethodHeader: headers['mcp-method'],
      body,
    });
    if (found.kind === 'legacy') return false;
    await handle(request, response, body);
    return true;
  };
}

const sessions = new Map();
createServer(async (request, response) => {
  const body = modern && request.method === 'POST' ? await readBody(request) : undefined;
  if (body && (await modern(request, response, body))) return;
  let transport = sessions.get(request.headers['mcp-session-id']);
  if (!transport) {
    if (request.headers['mcp-session-id']) return response.writeHead(404).end();
    transport = new Transport({
      sessionIdGenerator: randomUUID,
      eventStore: new Events(),
      retryInterval: 500,
      onsessioninitialized: (id) => sessions.set(id, transport),
    });
    await build().connect(transport);
  }
  await transport.handleRequest(request, response, body);
}).listen(Number(process.argv[3]), '127.0.0.1');
