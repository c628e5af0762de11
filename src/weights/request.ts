/**
 * One GET for a part of a file, over any redirects, up to the headers of the answer.
 *
 * Owner of the answer's body: the caller, who reads or destroys it. Every hop waits until its server may be asked, gets the authorization of its own origin and no other,
 * and may not lead from https to http. Bounds: REDIRECTS_MAX hops; the dispatcher's time limits for each.
 */
import { type Dispatcher, request } from 'undici';
import { PACKAGE_VERSION } from '../config/version.ts';
import { shownUrl, weightUrlProblem } from '../config/weight-url.ts';
import type { Headers } from './asked-wait.ts';
import { WeightFault } from './fault.ts';

const REDIRECTS_MAX = 5;
const REDIRECTS: ReadonlySet<number> = new Set([301, 302, 303, 307, 308]);
/** Of a body that nobody wants, so that its connection can be used again. */
const DUMP_BYTES_MAX = 64 * 1024;

export interface Asker {
  readonly dispatcher: Dispatcher;
  readonly signal: AbortSignal;
  /** Resolves when this server may be asked. */
  readonly allowed: (origin: string) => Promise<void>;
  readonly authorizationFor: (origin: string) => string | undefined;
}

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  readonly body: Dispatcher.ResponseData['body'];
  /** Who gave it, after redirects. */
  readonly url: URL;
  /** Whether that server was given an authorization. */
  readonly authorized: boolean;
}

/** @throws WeightFault NOT_A_FILE, CREDENTIALS; the error of undici when there is no answer; the reason of the signal */
export async function ask(asker: Asker, from: string, headers: Readonly<Record<string, string>>): Promise<Answer> {
  let url = new URL(from);
  for (let hops = 0; ; hops++) {
    await asker.allowed(url.origin);
    const authorization = asker.authorizationFor(url.origin);
    const {
      statusCode,
      headers: answered,
      body,
    } = await request(url, {
      dispatcher: asker.dispatcher,
      // One of its own for each request: it goes with the request, and leaves nothing behind on the other.
      signal: AbortSignal.any([asker.signal]),
      headers: {
        ...headers,
        'user-agent': `batchport/${PACKAGE_VERSION}`,
        // The hash is of the file itself.
        'accept-encoding': 'identity',
        ...(authorization === undefined ? {} : { authorization }),
      },
    });
    if (!REDIRECTS.has(statusCode)) {
      return { status: statusCode, headers: answered, body, url, authorized: authorization !== undefined };
    }
    await dump(body);
    if (hops === REDIRECTS_MAX) {
      throw new WeightFault(
        'NOT_A_FILE',
        `${shownUrl(from)} leads from one redirect to the next, more than ${REDIRECTS_MAX} times`,
      );
    }
    url = target(url, answered.location);
  }
}

/** Reads away a body that is of no interest. */
export async function dump(body: Answer['body']): Promise<void> {
  await body.dump({ limit: DUMP_BYTES_MAX }).catch(() => {});
}

function target(from: URL, location: string | string[] | undefined): URL {
  const text = typeof location === 'string' ? location : '';
  const url = text !== '' && URL.canParse(text, from.href) ? new URL(text, from) : undefined;
  const problem = url === undefined ? 'is none' : weightUrlProblem(url.href);
  if (url === undefined || problem !== undefined) {
    throw new WeightFault('NOT_A_FILE', `${shownUrl(from)} redirects to an address that ${problem}`);
  }
  if (from.protocol === 'https:' && url.protocol === 'http:') {
    throw new WeightFault('NOT_A_FILE', `${shownUrl(from)} redirects to ${shownUrl(url)}, which is not encrypted`);
  }
  return url;
}
