/**
 * The built-in load generator: keep-alive connections over raw sockets, with as little work per request as node:net allows. See load.ts.
 */
import net from 'node:net';
import { addressOf, requestBytes } from '../support/raw.ts';
import { answerParent } from './child.ts';
import { LoadCount, type LoadReport } from './load-count.ts';

export interface LoadJob {
  /** With the path. */
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Uint8Array;
  readonly connections: number;
  readonly seconds: number;
}

const HEAD_END = Buffer.from('\r\n\r\n');
/** Liveness: how long a server may keep an answer back. */
const ANSWER_LIMIT_MS = 30_000;

/** One run: its connections and its counts. */
class Run {
  readonly #count: LoadCount;
  readonly #request: Buffer;

  constructor(request: Buffer, seconds: number) {
    this.#request = request;
    this.#count = new LoadCount(seconds);
  }

  /** Sends until the time is over. */
  async drive(url: string): Promise<void> {
    const socket = net.connect({ ...addressOf(url), noDelay: true });
    socket.setTimeout(ANSWER_LIMIT_MS, () => socket.destroy(new Error(`no answer within ${ANSWER_LIMIT_MS} ms`)));
    try {
      await new Promise<void>((resolve, reject) => {
        let sentAt = 0;
        let received: Buffer = Buffer.alloc(0);
        const send = () => {
          sentAt = performance.now();
          socket.write(this.#request);
        };
        socket.once('connect', send);
        socket.once('error', reject);
        socket.once('close', () => reject(new Error('the server closed a connection')));
        socket.on('data', (chunk: Buffer) => {
          received = received.length === 0 ? chunk : Buffer.concat([received, chunk]);
          const length = answerLength(received);
          if (length === undefined || received.length < length) return;
          if (received.length > length) return void socket.destroy(new Error('bytes after the answer'));
          const fault = statusFault(received);
          if (fault !== undefined) return void socket.destroy(new Error(fault));
          received = Buffer.alloc(0);
          if (!this.#count.answered(sentAt)) return resolve();
          send();
        });
      });
    } finally {
      socket.removeAllListeners('close');
      socket.destroy();
    }
  }

  report(): LoadReport {
    return this.#count.report();
  }
}

/** Length of the answer at the start of `bytes`, undefined while its head is not whole. */
function answerLength(bytes: Buffer): number | undefined {
  const headEnd = bytes.indexOf(HEAD_END);
  if (headEnd < 0) return undefined;
  const match = /\r\ncontent-length: *(\d+)/i.exec(bytes.toString('latin1', 0, headEnd));
  if (match === null) throw new Error('an answer without Content-Length');
  return headEnd + HEAD_END.length + Number(match[1]);
}

function statusFault(answer: Buffer): string | undefined {
  if (answer.toString('latin1', 9, 12) === '200') return undefined;
  return `the server answered ${answer.toString('latin1', 0, 500)}`;
}

answerParent<LoadJob, LoadReport>(async ({ url, headers, body, connections, seconds }) => {
  const request = requestBytes('POST', new URL(url).pathname, Object.entries(headers), body);
  const run = new Run(request, seconds);
  await Promise.all(Array.from({ length: connections }, () => run.drive(url)));
  return run.report();
});
