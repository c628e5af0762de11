/**
 * Load over gRPC: one call after another on each of a number of connections, on node:http2 directly, which costs less than a client of gRPC. See grpc-load.ts.
 */
import { type ClientHttp2Session, connect } from 'node:http2';
import { answerParent } from './child.ts';
import { LoadCount, type LoadReport } from './load-count.ts';
import type { LoadJob } from './load-worker.ts';

/** Liveness: how long a server may keep an answer back. */
const ANSWER_LIMIT_MS = 30_000;

class Run {
  readonly #count: LoadCount;
  readonly #headers: Record<string, string>;
  readonly #frame: Uint8Array;

  constructor(path: string, frame: Uint8Array, seconds: number) {
    this.#headers = { ':method': 'POST', ':path': path, 'content-type': 'application/grpc', te: 'trailers' };
    this.#frame = frame;
    this.#count = new LoadCount(seconds);
  }

  /** Calls until the time is over. */
  async drive(origin: string): Promise<void> {
    const session = connect(origin);
    session.setTimeout(ANSWER_LIMIT_MS, () => session.destroy(new Error(`no answer within ${ANSWER_LIMIT_MS} ms`)));
    try {
      await new Promise<void>((resolve, reject) => {
        session.once('error', reject);
        session.once('close', () => reject(new Error('the server closed a connection')));
        this.#next(session, resolve, reject);
      });
    } finally {
      session.removeAllListeners('close');
      session.destroy();
    }
  }

  #next(session: ClientHttp2Session, done: () => void, failed: (error: Error) => void): void {
    const sentAt = performance.now();
    const stream = session.request(this.#headers);
    let status: unknown;
    const note = (headers: object): void => {
      status = (headers as Record<string, unknown>)['grpc-status'] ?? status;
    };
    stream.once('response', note);
    stream.once('trailers', note);
    stream.on('error', failed);
    stream.resume();
    stream.once('end', () => {
      if (status !== '0') return failed(new Error(`the server answered with the status ${String(status)}`));
      if (!this.#count.answered(sentAt)) return done();
      this.#next(session, done, failed);
    });
    stream.end(this.#frame);
  }

  report(): LoadReport {
    return this.#count.report();
  }
}

answerParent<LoadJob, LoadReport>(async ({ url, body, connections, seconds }) => {
  const { origin, pathname } = new URL(url);
  const run = new Run(pathname, body, seconds);
  await Promise.all(Array.from({ length: connections }, () => run.drive(origin)));
  return run.report();
});
