/**
 * The metrics port: /metrics (Prometheus), /status (JSON), /healthz. Served by the supervisor itself, so it answers while any other process hangs.
 *
 * Bound: CONNECTIONS_MAX connections, and no more than a part of the files that the supervisor may have open, which it needs to start processes again.
 */
import { createServer, type Server } from 'node:http';
import { openFilesMax } from '../system/open-files.ts';

export interface AdminSource {
  readonly metrics: () => Promise<string>;
  readonly contentType: string;
  readonly status: () => unknown;
  readonly live: () => boolean;
}

const TIMEOUT_MS = 10_000;
const CONNECTIONS_MAX = 256;
const OPEN_FILES_PART = 1 / 4;

export class AdminServer {
  readonly #fd: number;
  readonly #server: Server;

  constructor(fd: number, source: AdminSource) {
    this.#fd = fd;
    this.#server = createServer({ headersTimeout: TIMEOUT_MS, requestTimeout: TIMEOUT_MS }, (request, response) => {
      request.resume();
      const path = (request.url ?? '').split('?', 1)[0]!;
      const reply = (status: number, type: string, body: string, headers: Record<string, string> = {}): void => {
        response.writeHead(status, { 'content-type': type, 'content-length': Buffer.byteLength(body), ...headers });
        response.end(body);
      };
      const json = (status: number, document: unknown, headers?: Record<string, string>): void =>
        reply(status, 'application/json', `${JSON.stringify(document)}\n`, headers);
      if (!['/metrics', '/status', '/healthz'].includes(path))
        return json(404, { error: 'Not Found', code: 'NOT_FOUND' });
      if (request.method !== 'GET' && request.method !== 'HEAD') {
        return json(405, { error: 'Method Not Allowed', code: 'METHOD_NOT_ALLOWED' }, { allow: 'GET, HEAD' });
      }
      if (path === '/healthz') return json(source.live() ? 200 : 503, { live: source.live() });
      if (path === '/status') return json(200, source.status());
      source.metrics().then(
        (text) => reply(200, source.contentType, text),
        (error: unknown) => json(500, { error: String(error), code: 'INTERNAL' }),
      );
    });
    this.#server.maxConnections = Math.min(CONNECTIONS_MAX, Math.floor(openFilesMax() * OPEN_FILES_PART));
  }

  listen(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#server.once('error', reject);
      this.#server.listen({ fd: this.#fd }, () => resolve());
    });
  }

  close(): void {
    this.#server.close();
    this.#server.closeAllConnections();
  }
}
