/**
 * What every answer of a server has in common: the status, the form of an error, and JSON whose members are looked at one by one.
 *
 * Everything wrong with an answer is a ConnectionError BAD_RESPONSE that says what.
 */
import { badResponse, InferenceError } from './errors.ts';
import { parseJson } from './json.ts';
import { parseRetryAfterMs } from './retry.ts';
import type { HttpAnswer } from './transport.ts';

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
const EXCERPT_CHARACTERS = 200;

/** @throws InferenceError unless the status is 200. */
export function assertSuccess(answer: HttpAnswer): void {
  if (answer.status === 200) return;
  const fallback = `HTTP_${answer.status}`;
  const retryAfterMs = parseRetryAfterMs(single(answer, 'retry-after'), Date.now());
  let message: string | undefined;
  let code: string | undefined;
  try {
    const body = asObject(parseJson(decoder.decode(answer.body)), 'the body');
    if (typeof own(body, 'error') === 'string') message = own(body, 'error') as string;
    if (typeof own(body, 'code') === 'string') code = own(body, 'code') as string;
  } catch {
    // Not the protocol's form of an error; perhaps a proxy's page.
  }
  message ??= `HTTP status ${answer.status}: ${excerpt(answer.body)}`;
  throw new InferenceError(message, { status: answer.status, code: code ?? fallback, retryAfterMs });
}

/** The body of a successful answer as JSON. */
export function jsonValue(answer: HttpAnswer): unknown {
  assertSuccess(answer);
  assertPlainBody(answer);
  return parseText(answer.body);
}

/** The same, as an object. */
export function jsonBody(answer: HttpAnswer): Record<string, unknown> {
  return asObject(jsonValue(answer), 'the body');
}

/** This client asks for no compression; a body that has some cannot be read. */
export function assertPlainBody(answer: HttpAnswer): void {
  const encoding = single(answer, 'content-encoding') ?? 'identity';
  if (encoding !== 'identity')
    throw badResponse(`the answer has the Content-Encoding ${encoding}, which was not asked for`);
}

export function parseText(body: Buffer): unknown {
  try {
    return parseJson(decoder.decode(body));
  } catch (cause) {
    throw badResponse(`the answer is not JSON: ${excerpt(body)}`, cause);
  }
}

export function asObject(value: unknown, what: string): Record<string, unknown> {
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw badResponse(`${what} is not a JSON object`);
  return value as Record<string, unknown>;
}

/** A member of an object itself, never of its prototype. */
export function own(object: Record<string, unknown>, key: string): unknown {
  return Object.hasOwn(object, key) ? object[key] : undefined;
}

export function requiredString(object: Record<string, unknown>, key: string): string {
  const value = own(object, key);
  if (typeof value !== 'string') throw badResponse(`"${key}" of the answer is not a string`);
  return value;
}

export function optionalString(object: Record<string, unknown>, key: string): string | undefined {
  return own(object, key) === undefined ? undefined : requiredString(object, key);
}

/** A header that must not be repeated. */
function single(answer: HttpAnswer, name: string): string | undefined {
  const value = answer.headers[name];
  return typeof value === 'string' ? value : undefined;
}

/** The start of a text or body, for messages. */
function excerpt(text: Buffer | string | undefined): string {
  const start = (typeof text === 'string' ? text : (text?.subarray(0, EXCERPT_CHARACTERS * 4).toString('utf8') ?? ''))
    .replace(/\s+/g, ' ')
    .trim();
  if (start === '') return '(nothing)';
  return start.length > EXCERPT_CHARACTERS ? `${start.slice(0, EXCERPT_CHARACTERS)}…` : start;
}
