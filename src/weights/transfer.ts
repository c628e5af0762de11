/**
 * One attempt to get the rest of a file: asks for what is missing, and adds what comes to the part.
 *
 *     206 from where the part ends ─▶ goes on
 *     200 ─▶ the server has no ranges, or the file has changed since (If-Range): begins anew
 *     416, a range of another place, another size than before ─▶ the part is worth nothing: emptied, and `broken`
 *
 * An answer is whole when as many bytes have come as it announced; whether they are the right ones, only their hash tells. Bounds: the dispatcher's limits for silence,
 * and STALL_BYTES in STALL_MS.
 */
import { createHash } from 'node:crypto';
import { shownUrl } from '../config/weight-url.ts';
import { askedWaitS, exhaustedForS, type Headers } from './asked-wait.ts';
import type { WeightCache } from './cache.ts';
import { WeightFault } from './fault.ts';
import type { Partial } from './partial.ts';
import { type Answer, type Asker, ask, dump } from './request.ts';
import { makeRoom } from './room.ts';
import type { Tracker } from './tracker.ts';

const STALL_MS = 60_000;
const STALL_BYTES = 64 * 1024;
/** Room that is made at a time for a file whose size nobody told. */
const GROWTH_BYTES = 64 * 2 ** 20;

export interface TransferHost extends Asker {
  readonly cache: WeightCache;
  readonly nowMs: () => number;
  /** A server wants to be left alone for so long. */
  readonly onPause: (origin: string, forS: number) => void;
}

export type TransferEnd =
  /** `proven`: all bytes came in this answer, and as many as it announced. Else some may be of another file, or the end be missing. */
  | { readonly kind: 'whole'; readonly proven: boolean }
  | { readonly kind: 'limited'; readonly reason: string; readonly askedS: number | undefined }
  | { readonly kind: 'broken'; readonly reason: string; readonly receivedBytes: number };

/** Of OpenSSL and Node.js, for a certificate that proves nothing. */
const CERTIFICATE_FAULT = /^(CERT_|DEPTH_ZERO_|SELF_SIGNED_|UNABLE_TO_|ERR_TLS_CERT_|HOSTNAME_MISMATCH|INVALID_CA)/;

/** @throws WeightFault for what another attempt would not mend; the reason of the signal */
export async function transfer(
  host: TransferHost,
  url: string,
  partial: Partial,
  tracker: Tracker,
): Promise<TransferEnd> {
  tracker.phase = 'asking';
  tracker.requests++;
  const before = tracker.receivedBytes;
  let answer: Answer | undefined;
  try {
    answer = await ask(host, url, rangeHeaders(url, partial));
    return await take(host, url, answer, partial, tracker);
  } catch (error) {
    // Whatever is left of it is not wanted.
    answer?.body.on('error', () => {}).destroy();
    host.signal.throwIfAborted();
    if (error instanceof WeightFault) throw error;
    const reason = reasonOf(error);
    if (CERTIFICATE_FAULT.test(reason))
      throw new WeightFault('UNTRUSTED', `${shownUrl(url)}: ${reason}`, { cause: error });
    return { kind: 'broken', reason, receivedBytes: tracker.receivedBytes - before };
  }
}

function rangeHeaders(url: string, partial: Partial): Record<string, string> {
  if (partial.bytes === 0) return {};
  const { origin } = partial;
  const validator = origin?.source === sourceOf(url) ? origin.validator : undefined;
  return { range: `bytes=${partial.bytes}-`, ...(validator === undefined ? {} : { 'if-range': validator }) };
}

async function take(
  host: TransferHost,
  url: string,
  answer: Answer,
  partial: Partial,
  tracker: Tracker,
): Promise<TransferEnd> {
  const { status, headers } = answer;
  const forS = exhaustedForS(headers);
  if (forS !== undefined) host.onPause(answer.url.origin, forS);
  if (status !== 200 && status !== 206) return refused(host, url, answer, partial);
  const encoding = headers['content-encoding'];
  if (encoding !== undefined && encoding !== 'identity') {
    throw new WeightFault('NOT_A_FILE', `${shownUrl(url)} answers with a compressed body, which was not asked for`);
  }
  const range = status === 206 ? rangeOf(headers) : undefined;
  if (status === 206) {
    const known = partial.origin?.sizeBytes;
    const fits = range?.start === partial.bytes && (known === undefined || range.sizeBytes === known);
    if (!fits) return startOver(partial, 'the server answered with another part of the file than was asked for');
  } else if (partial.bytes > 0) partial.restart();
  const sizeBytes = range?.sizeBytes ?? lengthOf(headers);
  partial.noteOrigin({ source: sourceOf(url), validator: validatorOf(headers), sizeBytes });
  tracker.sizeBytes = sizeBytes;
  return receive(host, answer, sizeBytes, partial, tracker);
}

async function receive(
  host: TransferHost,
  { body }: Answer,
  sizeBytes: number | undefined,
  partial: Partial,
  tracker: Tracker,
): Promise<TransferEnd> {
  let roomBytes = sizeBytes ?? 0;
  if (sizeBytes !== undefined) {
    makeRoom(host.cache, sizeBytes, partial.path);
    partial.reserve(sizeBytes);
  }
  const startBytes = partial.bytes;
  let window = { sinceMs: host.nowMs(), bytes: startBytes };
  tracker.phase = 'receiving';
  tracker.note = '';
  tracker.at(startBytes, host.nowMs());
  for await (const chunk of body as AsyncIterable<Buffer>) {
    if (sizeBytes === undefined && partial.bytes + chunk.length > roomBytes) {
      roomBytes = partial.bytes + chunk.length + GROWTH_BYTES;
      makeRoom(host.cache, roomBytes, partial.path);
    }
    await partial.append(chunk);
    tracker.receivedBytes += chunk.length;
    const nowMs = host.nowMs();
    tracker.at(partial.bytes, nowMs);
    if (nowMs - window.sinceMs < STALL_MS) continue;
    if (partial.bytes - window.bytes < STALL_BYTES)
      throw new Error(`less than ${STALL_BYTES} bytes in ${STALL_MS / 1000} s`);
    window = { sinceMs: nowMs, bytes: partial.bytes };
  }
  if (sizeBytes === undefined || partial.bytes === sizeBytes) {
    return { kind: 'whole', proven: sizeBytes !== undefined && startBytes === 0 };
  }
  const reason = `the body ended after ${partial.bytes} of ${sizeBytes} bytes`;
  return { kind: 'broken', reason, receivedBytes: partial.bytes - startBytes };
}

async function refused(host: TransferHost, url: string, answer: Answer, partial: Partial): Promise<TransferEnd> {
  const { status, headers, authorized } = answer;
  await dump(answer.body);
  const shown = shownUrl(url);
  const where = answer.url.href === new URL(url).href ? shown : `${shown}, redirected to ${shownUrl(answer.url)},`;
  const askedS = askedWaitS(headers, host.nowMs());
  if (status === 429 || status === 503 || (askedS !== undefined && (status === 403 || status >= 500))) {
    if (askedS !== undefined) host.onPause(answer.url.origin, askedS);
    return { kind: 'limited', reason: `the server answered ${status}`, askedS };
  }
  if (status === 401 || status === 403) {
    throw new WeightFault('ACCESS_DENIED', `${where} answers ${status}: ${accessHint(answer.url, authorized)}`);
  }
  if (status === 404 || status === 410)
    throw new WeightFault('NOT_FOUND', `${where} answers ${status}: there is no such file`);
  if (status === 416) return startOver(partial, 'the server has less of the file than there is already');
  if (status >= 500 || status === 408 || status === 425) {
    return { kind: 'broken', reason: `the server answered ${status}`, receivedBytes: 0 };
  }
  throw new WeightFault('NOT_A_FILE', `${where} answers ${status} instead of the file`);
}

function accessHint(url: URL, authorized: boolean): string {
  if (authorized) return 'the authorization that it was given is not enough';
  if (/[?&](X-Amz-Signature|Signature|sig|X-Goog-Signature)=/i.test(url.search))
    return 'the presigned URL may have expired';
  return 'it may want an authorization, see --weight-credentials (for Hugging Face: HF_TOKEN)';
}

function startOver(partial: Partial, reason: string): TransferEnd {
  partial.restart();
  return { kind: 'broken', reason, receivedBytes: 0 };
}

function rangeOf(headers: Headers): { start: number; sizeBytes: number } | undefined {
  const match = /^bytes (\d{1,15})-\d{1,15}\/(\d{1,15})$/.exec(textOf(headers['content-range']));
  return match === null ? undefined : { start: Number(match[1]), sizeBytes: Number(match[2]) };
}

function lengthOf(headers: Headers): number | undefined {
  const text = textOf(headers['content-length']);
  return /^\d{1,15}$/.test(text) ? Number(text) : undefined;
}

/** A weak tag says only that the file is as good as the same. */
function validatorOf(headers: Headers): string | undefined {
  const tag = textOf(headers.etag);
  if (/^"[^"]*"$/.test(tag)) return tag;
  const date = textOf(headers['last-modified']);
  return tag === '' && date !== '' ? date : undefined;
}

/** The query of a presigned URL is another each time. */
function sourceOf(url: string): string {
  const { origin, pathname } = new URL(url);
  return createHash('sha256').update(`${origin}${pathname}`).digest('hex');
}

function textOf(value: string | readonly string[] | undefined): string {
  return typeof value === 'string' ? value : '';
}

function reasonOf(error: unknown): string {
  const { code, message, errors } = error as NodeJS.ErrnoException & { errors?: readonly NodeJS.ErrnoException[] };
  return code ?? errors?.[0]?.code ?? message;
}
