/** Servers for the load generator's tests: over bare sockets, so that they may answer whatever and whenever a test wants. */
import net, { type AddressInfo } from 'node:net';
import type { Target } from '../../../src/load/connection.ts';
import { makeTarget } from '../../../src/load/target.ts';
import type { CleanUp } from '../../support/repository.ts';

const BODY = Buffer.from('eight by');

export interface LoadServer {
  readonly target: Target;
  /** Whole requests that have come. */
  readonly requests: number;
  /** Connections that have been made. */
  readonly connections: number;
}

/** Calls `answer` for each whole request, with its number from 1; what it does with the socket is its own affair. */
export async function loadServer(
  cleanUp: CleanUp,
  answer: (socket: net.Socket, request: number) => void,
): Promise<LoadServer> {
  const found = { requests: 0, connections: 0 };
  const sockets = new Set<net.Socket>();
  const server = net.createServer((socket) => {
    found.connections++;
    sockets.add(socket);
    let bytes = 0;
    socket.on('error', () => {});
    socket.on('close', () => sockets.delete(socket));
    socket.on('data', (chunk) => {
      bytes += chunk.length;
      for (; bytes >= target.request.length; bytes -= target.request.length) answer(socket, ++found.requests);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  cleanUp.after(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  const { port } = server.address() as AddressInfo;
  const target = makeTarget(`http://127.0.0.1:${port}/base/`, '/v2/models/m/infer', [['X-Test', 'yes']], BODY);
  return Object.assign(found, { target });
}

/** A whole answer. */
export function answerBytes(status: number, body = '{}', ...headers: string[]): string {
  return `HTTP/1.1 ${status} Whatever\r\n${headers.map((header) => `${header}\r\n`).join('')}Content-Length: ${body.length}\r\n\r\n${body}`;
}

/** Answers each request at once. */
export function always(status: number, body = '{}', ...headers: string[]): (socket: net.Socket) => void {
  const bytes = answerBytes(status, body, ...headers);
  return (socket) => void socket.write(bytes);
}
