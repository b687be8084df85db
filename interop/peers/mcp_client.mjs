// A client by the official TypeScript SDK, 1.x or 2.x: `URL AGENT` finds the gateway's tools and calls an agent. It prints
// what it saw as JSON: whether the tool is there, the result of a call, and what a call that fails says.
const load = async () => {
  try {
    return await import('@modelcontextprotocol/client');
  } catch {
    const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
    return { Client, ...(await import('@modelcontextprotocol/sdk/client/streamableHttp.js')) };
  }
};

const [url, agentId] = process.argv.slice(2);
const { Client, StreamableHTTPClientTransport } = await load();
const client = new Client({ name: 'interop', version: '1' });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const { tools } = await client.listTools();
const call = async (agent) => {
  const result = await client.callTool({ name: 'agent3_call', arguments: { agentId: agent, message: 'hello' } });
  return JSON.stringify(result.content);
};
const found = tools.some((tool) => tool.name === 'agent3_call');
console.log(JSON.stringify({ found, value: await call(agentId), error: await call('nobody-of-this-name') }));
await client.close();
process.exit(0);
