/**
 * The rival for everything over HTTP: a plain node:http server that collects the body of a request and answers what it was told, which is what the server
 * under test answered to the same request.
 */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { answerParent } from './child.ts';

export interface EchoAnswer {
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Uint8Array;
}

answerParent<EchoAnswer, { readonly port: number }>(async (answer) => {
  const headers = { ...answer.headers };
  const body = Buffer.from(answer.body);
  const server = createServer({ noDelay: true, keepAliveTimeout: 75_000 }, (request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      Buffer.concat(chunks);
      response.writeHead(200, headers);
      response.end(body);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return { port: (server.address() as AddressInfo).port };
});
