// An MCP server by the official TypeScript SDK 1.x. `stdio OUTCOME NOTES` serves one server, `http NOTES PORT …` one for
// each outcome, each on a port of its own.
import { randomUUID } from 'node:crypto';
import { appendFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { z } from 'zod';

const OUTCOMES = ['value', 'error', 'question', 'stream', 'cancel'];
const PIECES = ['Once ', 'upon ', 'a time'];
const SIZE = { type: 'object', properties: { size: { type: 'string' } }, required: ['size'] };

function build(outcome, notes) {
  const server = new McpServer({ name: `typescript-${outcome}`, version: '1' });
  const note = (what) => appendFileSync(notes, `${what}\n`);
  const text = (said) => ({ content: [{ type: 'text', text: said }] });
  const annotations = { readOnlyHint: outcome === 'value' || outcome === 'error' };
  const config = { description: 'Say it again', inputSchema: { text: z.string() }, annotations };
  server.registerTool('say', config, async ({ text: given }, extra) => {
    if (outcome === 'error') throw new Error('the oven is cold');
    if (outcome === 'question') {
      const params = { message: 'Which size?', requestedSchema: SIZE };
      const asked = await server.server.elicitInput(params, { relatedRequestId: extra.requestId });
      return text(`said ${given} ${asked.content.size}`);
    }
    if (outcome === 'stream') {
      const progressToken = extra._meta?.progressToken;
      for (const [number, message] of PIECES.entries())
        if (progressToken !== undefined) {
          const params = { progressToken, progress: number + 1, total: PIECES.length, message };
          await extra.sendNotification({ method: 'notifications/progress', params });
        }
      return text(PIECES.join(''));
    }
    if (outcome === 'cancel') {
      note('running');
      await new Promise((resolve) => extra.signal.addEventListener('abort', resolve));
      note('cancelled');
    }
    return text(`said ${given}`);
  });
  return server;
}

function serve(outcome, notes, port) {
  const sessions = new Map();
  createServer(async (request, response) => {
    let transport = sessions.get(request.headers['mcp-session-id']);
    if (!transport) {
      if (request.headers['mcp-session-id']) return response.writeHead(404).end();
      transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: (id) => sessions.set(id, transport),
      });
      await build(outcome, notes).connect(transport);
    }
    await transport.handleRequest(request, response);
  }).listen(port, '127.0.0.1');
}

if (process.argv[2] === 'http')
  process.argv.slice(4).forEach((port, number) => serve(OUTCOMES[number], process.argv[3], Number(port)));
else await build(process.argv[3], process.argv[4]).connect(new StdioServerTransport());
