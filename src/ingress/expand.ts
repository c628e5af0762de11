/**
 * Expands compressed bodies, never past the limit of a body, and few at a time: however many arrive at once, what they grow to is bounded.
 *
 * Bounds: EXPANSIONS_MAX at a time; those that wait are counted in the budget of bodies.
 */
import { promisify } from 'node:util';
import { gunzip, inflate, inflateRaw, type ZlibOptions } from 'node:zlib';
import { BatchportError } from '../config/errors.ts';
import { type BodyBudget, tooLarge } from './body.ts';
import { Turnstile } from './turnstile.ts';

const EXPANSIONS_MAX = 2;

/** Encodings the server reads and writes, as it tells clients. */
export const ENCODINGS = 'gzip, deflate';

type Expand = (body: Buffer, options: ZlibOptions) => Promise<{ buffer: Buffer; engine: { bytesWritten: number } }>;

const expandGzip = promisify(gunzip) as unknown as Expand;
const expandZlib = promisify(inflate) as unknown as Expand;
const expandBare = promisify(inflateRaw) as unknown as Expand;

/** @throws UNSUPPORTED_ENCODING for a Content-Encoding that is not understood. */
export function parseEncoding(value: string): 'gzip' | 'deflate' | undefined {
  const name = value.trim().toLowerCase();
  if (name === '' || name === 'identity') return undefined;
  if (name === 'gzip' || name === 'x-gzip') return 'gzip';
  if (name === 'deflate') return 'deflate';
  throw new BatchportError('UNSUPPORTED_ENCODING', `Content-Encoding is not supported; send ${ENCODINGS} or none.`);
}

export class Expander {
  readonly #budget: BodyBudget;
  readonly #turnstile = new Turnstile(EXPANSIONS_MAX);

  constructor(budget: BodyBudget) {
    this.#budget = budget;
  }

  /**
   * Expands a body. `deflate` is zlib's format; bare deflate data, which some clients send under that name, is understood too.
   *
   * @param wanted asked before the work begins: the client may have left while the body waited. If not, the result is empty.
   * @throws BODY_TOO_LARGE, QUEUE_FULL, BAD_REQUEST for broken data.
   */
  async expand(body: Buffer, encoding: 'gzip' | 'deflate', wanted: () => boolean): Promise<Buffer> {
    this.#budget.take(body.length);
    try {
      await this.#turnstile.enter();
      return wanted() ? await expandBody(body, encoding, this.#budget.maxBodyBytes) : Buffer.alloc(0);
    } finally {
      this.#budget.give(body.length);
      this.#turnstile.leave();
    }
  }
}

async function expandBody(body: Buffer, encoding: 'gzip' | 'deflate', maxBytes: number): Promise<Buffer> {
  const expand = encoding === 'gzip' ? expandGzip : isZlib(body) ? expandZlib : expandBare;
  try {
    const { buffer, engine } = await expand(body, { maxOutputLength: maxBytes, info: true });
    if (engine.bytesWritten !== body.length) throw new Error('there is more after the end of the data');
    return buffer;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ERR_BUFFER_TOO_LARGE') throw tooLarge(maxBytes);
    throw new BatchportError('BAD_REQUEST', `The body is not valid ${encoding} data: ${(error as Error).message}.`);
  }
}

/** A zlib header: method 8, and both bytes together a multiple of 31. */
function isZlib(body: Buffer): boolean {
  return body.length >= 2 && (body[0]! & 0x0f) === 8 && ((body[0]! << 8) | body[1]!) % 31 === 0;
}
