/**
 * Small servers for tests of a client: one over node:http that answers as the test says, one over bare sockets that sends any bytes, and an echo that
 * speaks the inference protocol by giving the inputs back as outputs. All end with the test.
 */
import http from 'node:http';
import net from 'node:net';
import type { CleanUp } from './repository.ts';

export interface ReceivedRequest {
  readonly method: string;
  readonly path: string;
  readonly headers: http.IncomingHttpHeaders;
  readonly body: Buffer;
}

export interface Answer {
  readonly status?: number;
  readonly headers?: http.OutgoingHttpHeaders;
  readonly body?: string | Uint8Array;
}

export type Handler = (request: ReceivedRequest, index: number) => Answer | Promise<Answer>;

export interface HttpServer {
  readonly url: string;
  /** Requests received whole, oldest first. */
  readonly requests: readonly ReceivedRequest[];
  /** Connections made so far. */
  connections(): number;
}

/** A server over node:http; `index` counts the requests from 0. */
export async function serveHttp(cleanUp: CleanUp, handler: Handler): Promise<HttpServer> {
  const requests: ReceivedRequest[] = [];
  let connections = 0;
  const server = http.createServer((incoming, outgoing) => {
    const chunks: Buffer[] = [];
    incoming.on('data', (chunk: Buffer) => chunks.push(chunk));
    incoming.on('end', async () => {
      const { method = '', url = '', headers } = incoming;
      const request = { method, path: url, headers, body: Buffer.concat(chunks) };
      const answer = await handler(request, requests.push(request) - 1);
      outgoing.writeHead(answer.status ?? 200, answer.headers).end(answer.body);
    });
  });
  server.on('connection', () => connections++);
  return {
    url: await listen(cleanUp, server, () => server.closeAllConnections()),
    requests,
    connections: () => connections,
  };
}

/** A server over bare sockets: `onData` gets each piece of a connection's bytes and the connection's number, from 0. */
export async function serveRaw(
  cleanUp: CleanUp,
  onData: (socket: net.Socket, data: Buffer, index: number) => void,
): Promise<string> {
  const sockets = new Set<net.Socket>();
  let count = 0;
  const server = net.createServer((socket) => {
    const index = count++;
    sockets.add(socket);
    socket.on('error', () => {}); // A client that gives up may reset the connection.
    socket.on('close', () => sockets.delete(socket));
    socket.on('data', (data) => onData(socket, data, index));
  });
  return listen(cleanUp, server, () => {
    for (const socket of sockets) socket.destroy();
  });
}

/** Address of a port that nothing listens on. */
export async function unusedUrl(): Promise<string> {
  const server = net.createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as net.AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return `http://127.0.0.1:${port}`;
}

/**
 * Answers an inference request with its own inputs as outputs, in the form in which they came. The text of the inputs is passed on untouched, so that
 * not even a number's digits can change here.
 */
export function echo(request: ReceivedRequest): Answer {
  const declared = request.headers['inference-header-content-length'];
  const length = declared === undefined ? request.body.length : Number(declared);
  const header = request.body.subarray(0, length).toString('utf8');
  const inputs = /"inputs":(\[.*\])\}$/s.exec(header)?.[1];
  const id = /^\{("id":"(?:[^"\\]|\\.)*",)?/.exec(header)?.[1] ?? '';
  const json = Buffer.from(`{${id}"model_name":"echo","model_version":"1","outputs":${inputs}}`);
  if (declared === undefined) return { headers: { 'content-type': 'application/json' }, body: json };
  return {
    headers: { 'content-type': 'application/octet-stream', 'inference-header-content-length': json.length },
    body: Buffer.concat([json, request.body.subarray(length)]),
  };
}

async function listen(cleanUp: CleanUp, server: net.Server, endConnections: () => void): Promise<string> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  cleanUp.after(async () => {
    endConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  const { port } = server.address() as net.AddressInfo;
  return `http://127.0.0.1:${port}`;
}
